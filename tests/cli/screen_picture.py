"""A terminal's screen as a picture: SVG that looks alike wherever it is shown."""
import re
import xml.sax.saxutils

WIDTH, HEIGHT, LETTERS, MARGIN = 8.0, 18.0, 13.2, 12.0  # of a character's cell and its letters, in pixels
PAPER, INK = "#1b1f27", "#d5dae3"
COLOURS = {"31": "#f47067", "32": "#6bc46d", "33": "#e0b252"}
BOLD, FAINT, UNDERLINED, REVERSED = "1", "2", "4", "7"
LOOKS = {BOLD: ' font-weight="bold"', FAINT: ' opacity="0.6"', UNDERLINED: ' text-decoration="underline"'}
RISING = "▁▂▃▄▅▆▇█"  # eighths of a cell, from below
GROWING = "▏▎▍▌▋▊▉"  # from the left
SHADES = {"░": 0.2, "▒": 0.5, "▓": 0.75}


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rectangle(row, column, width, colour, height=1.0, opacity=1.0):
    """Parts of cells, filled from below."""
    x, y = MARGIN + column * WIDTH, MARGIN + (row + 1 - height) * HEIGHT
    faint = f' opacity="{number(opacity)}"' if opacity < 1 else ""
    return f'<rect x="{number(x)}" y="{number(y)}" width="{number(width * WIDTH)}" height="{number(height * HEIGHT)}" fill="{colour}"{faint}/>'


def block(character):
    """(width, height, opacity) of a character that fills a part of its cell; None of a letter."""
    if character in RISING:
        return 1.0, (RISING.index(character) + 1) / 8, 1.0
    if character in GROWING:
        return (GROWING.index(character) + 1) / 8, 1.0, 1.0
    return (1.0, 1.0, SHADES[character]) if character in SHADES else None


def runs(cells, row, columns):
    """(column, text, style) of the row's characters that stand beside one another in one style, blocks each by themselves."""
    begin, text, style = 0, "", ""
    for column in range(columns):
        character, its_style = cells.get((row, column), (" ", ""))
        is_part = block(character) is not None
        if text and (is_part or its_style != style):
            yield begin, text, style
            text = ""
        if is_part:
            yield column, character, its_style
        else:
            begin, style = (begin, style) if text else (column, its_style)
            text += character
    yield begin, text, style


def words(column, text):
    """(column, words) of what stands between two spaces or more, which not every viewer keeps."""
    return [(column + match.start(), match[0]) for match in re.finditer(r"\S+(?: \S+)*", text)]


def picture(cells, columns, rows):
    """cells: {(row, column): (character, SGR codes)}, as terminal_screen.Screen has them."""
    drawn = []
    for row in range(rows):
        for column, text, style in runs(cells, row, columns):
            colour = COLOURS.get(style, INK)
            part = block(text) if len(text) == 1 else None
            if part is not None:
                width, height, opacity = part
                drawn.append(rectangle(row, column, width, colour, height, opacity))
                continue
            if style == REVERSED:
                drawn.append(rectangle(row, column, len(text), INK))
                colour = PAPER
            for at, piece in words(column, text):
                x, y = MARGIN + at * WIDTH, MARGIN + (row + 0.74) * HEIGHT
                drawn.append(f'<text x="{number(x)}" y="{number(y)}" textLength="{number(len(piece) * WIDTH)}" fill="{colour}"{LOOKS.get(style, "")}>'
                             f"{xml.sax.saxutils.escape(piece)}</text>")
    width, height = 2 * MARGIN + columns * WIDTH, 2 * MARGIN + rows * HEIGHT
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" '
            f'viewBox="0 0 {number(width)} {number(height)}">\n'
            f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>\n'
            f'<g font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{LETTERS}">\n'
            + "\n".join(drawn) + "\n</g>\n</svg>\n")
