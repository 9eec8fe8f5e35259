#!/usr/bin/env python3
"""Pictures of screens: every character stands in its cell, in the colours that the program asked for.

    python3 tests/cli/screen_picture_test.py [UNITTEST OPTIONS]
"""
import unittest
import xml.etree.ElementTree

from screen_picture import COLOURS, HEIGHT, INK, MARGIN, PAPER, WIDTH, picture
from terminal_screen import Screen

SVG = "{http://www.w3.org/2000/svg}"


class Picture(unittest.TestCase):
    def drawn(self, text, columns=40, rows=4):
        screen = Screen(columns, rows)
        screen.feed("\x1b[?1049h" + text)
        root = xml.etree.ElementTree.fromstring(picture(screen.cells(), columns, rows))
        return root.iter(SVG + "text"), [each for each in root.iter(SVG + "rect") if each.get("x") is not None]

    def place(self, element):
        return (float(element.get("x")) - MARGIN) / WIDTH

    def test_has_every_character_in_its_cell(self):
        written = "a <b> & c\r\n  word   12.5%  \x1b[32mrunning\x1b[0m end\r\n\x1b[1mhead\x1b[0m tail"
        texts, _ = self.drawn(written)
        found = {}
        for text in texts:
            self.assertEqual(float(text.get("textLength")), len(text.text) * WIDTH)
            row = int((float(text.get("y")) - MARGIN) / HEIGHT)
            for offset, letter in enumerate(text.text):
                found[row, round(self.place(text)) + offset] = letter
        lines = ["a <b> & c", "  word   12.5%  running end", "head tail"]
        self.assertEqual({place: letter for place, letter in found.items() if letter != " "},
                         {(row, column): letter for row, line in enumerate(lines) for column, letter in enumerate(line) if letter != " "})

    def test_keeps_the_colours(self):
        texts, filled = self.drawn("plain\x1b[31mred\x1b[0m\x1b[2mfaint\x1b[0m\x1b[7m on  top \x1b[0m")
        looks = {text.text: (text.get("fill"), text.get("opacity")) for text in texts}
        self.assertEqual(looks, {"plain": (INK, None), "red": (COLOURS["31"], None), "faint": (INK, "0.6"), "on": (PAPER, None), "top": (PAPER, None)})
        self.assertEqual([(self.place(each), float(each.get("width")) / WIDTH, each.get("fill")) for each in filled], [(13, 9, INK)])

    def test_has_bold_letters_and_underlined_ones(self):
        texts, _ = self.drawn("\x1b[1mbold\x1b[0m \x1b[4mlined\x1b[0m plain")
        looks = {text.text: (text.get("font-weight"), text.get("text-decoration")) for text in texts}
        self.assertEqual(looks, {"bold": ("bold", None), "lined": (None, "underline"), "plain": (None, None)})

    def test_draws_blocks_as_parts_of_their_cells(self):
        _, filled = self.drawn("x▁█▌░")
        parts = [(self.place(each), float(each.get("width")) / WIDTH, float(each.get("height")) / HEIGHT, each.get("opacity")) for each in filled]
        self.assertEqual(parts, [(1, 1, 0.125, None), (2, 1, 1, None), (3, 0.5, 1, None), (4, 1, 1, "0.2")])
        self.assertLessEqual({float(each.get("y")) + float(each.get("height")) for each in filled}, {MARGIN + HEIGHT})

    def test_of_what_was_written_on_the_normal_screen_follows_its_lines(self):
        screen = Screen(20, 4)
        screen.feed("one\r\n\x1b[32mtwo\x1b[0m\r\n")
        self.assertEqual(screen.written_cells(), {**{(0, i): (letter, "") for i, letter in enumerate("one")},
                                                  **{(1, i): (letter, "32") for i, letter in enumerate("two")}})

    def test_of_a_line_that_is_longer_than_the_screen_goes_on_in_the_next(self):
        screen = Screen(3, 4)
        screen.feed("abc\r\ndefg\r\n")
        self.assertEqual(screen.written_cells(), {place: (letter, "") for place, letter in
                                                  zip(((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)), "abcdefg")})

    def test_of_a_line_that_was_begun_again_holds_what_was_written_last(self):
        screen = Screen(20, 4)
        screen.feed("12 of 20\x1b[K\r3\x1b[K\r\x1b[Kdone\r\n")
        self.assertEqual(screen.written_cells(), {(0, i): (letter, "") for i, letter in enumerate("done")})


if __name__ == "__main__":
    unittest.main(verbosity=2)
