#!/usr/bin/env python3
"""cotune generate --chat: conversations, their commands and files, in pipes and on a terminal. Standard library only.

    COTUNE=build/cotune python3 tests/cli/chat_test.py [UNITTEST OPTIONS]
"""
import json
import re
import signal
import subprocess
import termios
import unittest

from generations import Generates, trained_adapter
from program import LIMIT_S
from terminal_screen import TerminalProgram
from tiny_models import ROOT, TEMPLATE, copy_model

ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"


class Chats(Generates):
    def setUp(self):
        super().setUp()
        self.session = self.path / "chat.json"
        self.folders = [trained_adapter(ADAPTERS / "all_linear", self.path / f"trained-{seed}", seed) for seed in (1, 2)]
        self.several = ("--adapter", "base", "--adapter", f"one={self.folders[0]}", "--adapter", f"two={self.folders[1]}")

    def chat(self, *lines, options=(), expect=0, new_tokens=6):
        done = self.generate("--chat", "--json", "--max-new-tokens", str(new_tokens), *options, expect=expect,
                             stdin="".join(line + "\n" for line in lines))
        return [json.loads(line) for line in done.stdout.splitlines()] if expect == 0 else done.stderr

    def tokens_behind(self, *turns):
        """Of an answer to a conversation; turns: (role, content)."""
        prompt = "".join(f"<{role}>{content}\n" for role, content in turns) + "<assistant>"
        return self.answer("--raw", "--prompt", prompt, "--max-new-tokens", "6")["tokens"]

    def messages(self):
        return [(message["role"], message["content"]) for message in json.loads(self.session.read_text())["messages"]]


class Commands(Chats):
    def test_step_back(self):
        first, second, third, again = self.chat("One?", "Two?", "/undo", "Three?", "/retry")
        self.assertEqual(third["tokens"], self.tokens_behind(("user", "One?"), ("assistant", first["text"]), ("user", "Three?")))
        self.assertEqual(again["tokens"], third["tokens"])  # the likeliest
        drawn = self.chat("One?", "/retry", "/retry", options=("--temperature", "1"))
        self.assertEqual(len({answer["text"] for answer in drawn}), 3)
        self.assertEqual(self.chat("One?", "/retry", "/retry", options=("--temperature", "1"))[2]["text"], drawn[2]["text"])

    def test_change_the_system_message(self):
        _, brief, none = self.chat("One?", "/new", "/system Short.", "One?", "/system", "/undo", "One?")
        self.assertEqual(brief["tokens"], self.tokens_behind(("system", "Short."), ("user", "One?")))
        self.assertEqual(none["tokens"], self.tokens_behind(("user", "One?")))

    def test_of_several_lines(self):
        quoted, continued, slash = self.chat('"""One', "", 'two?"""', "/new", "One\\", "two?", "/new", " /new")
        self.assertEqual(quoted["tokens"], self.tokens_behind(("user", "One\n\ntwo?")))
        self.assertEqual(continued["tokens"], self.tokens_behind(("user", "One\ntwo?")))
        self.assertEqual(slash["tokens"], self.tokens_behind(("user", "/new")))

    def test_that_do_not_exist_or_cannot_be_done_are_named(self):
        for line, wanted in (("/nwe", "there is no command /nwe; /help"), ("/retry", "/retry: there is no answer yet"),
                             ("/undo", "/undo: there is no message yet"), ("/new chat", "/new: takes nothing behind it, found `chat`"),
                             ("/save", "/save: expected the name"), ("/adapter on", "/adapter: `on`: expected one of base, all")):
            self.assertIn(wanted, self.chat(line, expect=2))


    def test_another_answer_is_given_by_those_that_have_answered(self):
        answers = self.chat("One?", "/new", "/adapter two", "Two?", "/adapter all", "/retry", "Three?",
                            options=("--session", self.session, *self.several))
        self.assertEqual([answer["adapter"] for answer in answers], ["base", "one", "two", "two", "two", "base", "one", "two"])
        self.assertEqual(answers[4]["tokens"], answers[3]["tokens"])
        kept = json.loads(self.session.read_text())["conversations"]
        self.assertEqual({name: [message["content"] for message in messages][::2] for name, messages in kept.items()},
                         {"base": ["Three?"], "one": ["Three?"], "two": ["Two?", "Three?"]})
        self.assertIn("/retry: there is no answer yet", self.chat("/retry", options=self.several, expect=2))


class Sessions(Chats):
    def test_go_on_where_they_were(self):
        options = ("--session", self.session, "--system", "Short.")
        (first,) = self.chat("One?", options=options)
        self.assertEqual(self.messages(), [("system", "Short."), ("user", "One?"), ("assistant", first["text"])])
        (second,) = self.chat("Two?", options=options)
        self.assertEqual(second["tokens"], self.tokens_behind(*self.messages()[:-1]))
        self.assertEqual(len(self.messages()), 5)
        self.chat("/undo", options=options)
        self.assertEqual(len(self.messages()), 3)
        self.assertEqual(list(self.path.glob("chat.json*")), [self.session])

    def test_that_could_not_be_kept_are_refused_before_the_first_question(self):
        self.assertIn("is no folder", self.chat("One?", options=("--session", self.path / "none" / "chat.json"), expect=2))

    def test_are_kept_of_every_adapter(self):
        answers = self.chat("One?", "/adapter two", "Two?", "/adapter all", "Three?", options=("--session", self.session, *self.several))
        self.assertEqual([answer["adapter"] for answer in answers], ["base", "one", "two", "two", "base", "one", "two"])
        kept = json.loads(self.session.read_text())["conversations"]
        self.assertEqual({name: len(messages) for name, messages in kept.items()}, {"base": 4, "one": 4, "two": 6})
        self.assertEqual(kept["two"][3], {"role": "assistant", "content": answers[3]["text"]})
        # Alone, an adapter goes on with its own and leaves those of the others.
        (alone,) = self.chat("Four?", options=("--session", self.session, *self.several[2:4]))
        again = json.loads(self.session.read_text())["conversations"]
        self.assertEqual(again["two"], kept["two"])
        self.assertEqual(again["one"][:4], kept["one"])
        self.assertEqual(again["one"][5]["content"], alone["text"])

    def test_that_are_records_of_training_data_keep_their_other_fields(self):
        self.model = copy_model(self.path / "with-tools", template="{% if tools %}<tools>{{ tools[0].name }}\n{% endif %}" + TEMPLATE)
        tools = [{"name": "look_up"}]
        record = {"id": 7, "messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1."}], "tools": tools}
        self.session.write_text(json.dumps(record))
        (answer,) = self.chat("Two?", options=("--session", self.session))
        self.assertEqual(answer["tokens"], self.tokens_behind(("tools", "look_up"), *self.messages()[:-1]))
        kept = json.loads(self.session.read_text())
        self.assertEqual((list(kept), kept["id"], kept["tools"], len(kept["messages"])), (["id", "messages", "tools"], 7, tools, 4))
        self.chat("Three?", options=("--session", self.session, *self.several))
        kept = json.loads(self.session.read_text())
        self.assertEqual((sorted(kept), kept["id"], kept["tools"]), (["conversations", "id", "tools"], 7, tools))
        self.session.write_text(json.dumps({**record, "tools": 3}))
        self.assertRegex(self.chat("Two?", options=("--session", self.session), expect=2), r"chat\.json:1: tools: expected a list")

    def test_end_in_order_where_the_program_is_asked_to(self):
        """In a pipe that stays open."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen(self.command("generate", "--model", self.model, "--dtype", "f64", "--chat", "--json", "--max-new-tokens", "6",
                                                    "--session", self.session), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.running.append(process)
            process.stdin.write(b"One?\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            process.send_signal(number)
            self.assertEqual(process.wait(LIMIT_S), 130)
            self.assertEqual(self.messages()[-2:], [("user", "One?"), ("assistant", answer["text"])])

    def test_that_are_damaged_are_named_and_left(self):
        self.session.write_text('{"messages": [{"role": "usr"}]}')
        errors = self.chat("One?", options=("--session", self.session), expect=2)
        self.assertRegex(errors, r"chat\.json:1: messages\[0\]\.role: expected one of .*; found \"usr\"")
        self.assertEqual(self.session.read_text(), '{"messages": [{"role": "usr"}]}')


class OnATerminal(Chats):
    def setUp(self):
        super().setUp()
        self.history = self.path / "state" / "cotune" / "chat_history"

    def terminal(self, *options, **more):
        more = {"HOME": str(self.path), "XDG_STATE_HOME": str(self.path / "state"), **more}
        program = TerminalProgram(self.command("generate", "--model", self.model, "--dtype", "f64", *options), **more)
        self.addCleanup(program.close)
        return program

    def say(self, program, text, prompts):
        """Waits until the program has asked so often, and says something."""
        program.wait_for(lambda screen: screen.normal.rstrip("\r").endswith("> ") and len(re.findall(r"(?:\A|\n)\r?> ", screen.normal)) >= prompts)
        program.press(text)

    def said(self, *keys, **more):
        """What the session holds of the user after these were typed, each when the program asks."""
        program = self.terminal("--chat", "--max-new-tokens", "2", "--session", self.session, **more)
        for number, text in enumerate((*keys, "\x04"), 1):
            self.say(program, text, number)
        self.assertEqual(program.end(), 0)
        said = [content for role, content in self.messages() if role == "user"]
        self.session.unlink()
        return said

    def test_a_chat_survives_mistakes_and_interruptions(self):
        program = self.terminal("--chat", "--max-new-tokens", "6", "--session", self.session)
        self.say(program, "x" * 600 + "\n", 1)
        self.say(program, "/nothing\n", 2)
        self.say(program, "half a mess\x03", 3)
        self.say(program, "One?\n", 4)
        self.say(program, "\x04", 5)
        self.assertEqual(program.end(), 0)
        self.assertEqual(self.messages()[0][1], "One?")
        for text in ("/help lists what else can be said", "tokens; the model's context holds 512", "there is no command /nothing",
                     "(Ctrl-D ends the program)"):
            self.assertIn(text, program.screen.normal.replace("\r", ""))
        self.assertEqual([role for role, _ in self.messages()], ["user", "assistant"])

    def test_what_is_typed_can_be_edited(self):
        left, right, home, end, delete = "\x1b[D", "\x1b[C", "\x1b[H", "\x1b[F", "\x1b[3~"
        for keys, wanted in (("Oe?" + 2 * left + "n\n", "One?"), ("e?" + home + "On" + end + "!\n", "One?!"), ("\x1bOHne?\x1bOH" + "O\n", "One?"),
                             ("ne?\x01O\x05!\n", "One?!"), ("One two\x17three\n", "One three"), ("nothing\x15One?\n", "One?"),
                             ("One? two" + 4 * left + "\x15One\n", "One two"), ("One? two" + 4 * left + "\x0b\n", "One?"),
                             ("One!\x7f?\n", "One?"), ("xOne?" + home + delete + "\n", "One?"), ("two" + "\x1b[1;5D" + "One \x1b[1;5C?\n", "One two?"),
                             ("One\x1b[5~\x1b[15~\x1bOP?\n", "One?"), ("a\tb\n", "a\tb"), ("Or" + left + right + "\x7fne?\n", "One?"),
                             ("x\x04One?\x01\x04\n", "One?")):
            with self.subTest(keys=keys):
                self.assertEqual(self.said(keys), [wanted])

    def test_letters_of_any_width_are_edited_whatever_the_locale(self):
        self.model = copy_model(self.path / "any", template="{% for message in messages %}{{ message.role }}{% endfor %}")
        for locale in ("C.UTF-8", "C"):
            self.assertEqual(self.said("Grüße 你好🙂!" + 3 * "\x1b[D" + "\x7fn\n", LC_ALL=locale), ["Grüße n好🙂!"])

    def test_what_was_typed_before_comes_back(self):
        self.assertEqual(self.said("One?\n", "Two?\n", "\x1b[A\x1bOA\x7f!\n"), ["One?", "Two?", "One!"])
        self.assertEqual(self.said("\x1b[A\n", "\x12Tw\n"), ["One!", "Two?"])  # of the chat before
        self.assertEqual([json.loads(line) for line in self.history.read_text().splitlines()], ["One?", "Two?", "One!", "One!", "Two?"])
        self.assertEqual(self.history.stat().st_mode & 0o777, 0o600)

    def test_what_is_typed_is_kept_where_it_may_be(self):
        program = self.terminal("--chat", "--max-new-tokens", "2", "--session", self.session, "--no-history")
        self.say(program, "One?\n", 1)
        self.say(program, "\x1b[A!\n", 2)
        self.say(program, "\x04", 3)
        self.assertEqual(program.end(), 0)
        self.assertEqual([content for role, content in self.messages() if role == "user"], ["One?", "One?!"])
        self.assertFalse(self.history.exists())
        self.session.unlink()
        (self.path / "state").write_text("no folder")
        self.assertEqual(self.said("One?\n", "Two?\n"), ["One?", "Two?"])
        (self.path / "state").unlink()
        self.history.parent.mkdir(parents=True)
        self.history.write_text("not JSON\n3\n" + "".join(json.dumps(f"{number}?") + "\n" for number in range(2001)))
        self.assertEqual(self.said("\x1b[A\n"), ["2000?"])
        lines = self.history.read_text().splitlines()
        self.assertEqual((len(lines), lines[0], lines[-1]), (1001, '"1001?"', '"2000?"'))

    def test_what_is_pasted_is_one_message(self):
        def pasted(text):
            return f"\x1b[200~{text}\x1b[201~"
        self.assertEqual(self.said(pasted("One\r\rtwo\x1b?\r") + "\n"), ["One\n\ntwo?"])
        self.assertEqual(self.said("Of " + pasted("one\ntwo") + "\x1b[D\x1b[D" + "-\n", "\x1b[A\n"), ["Of one\nt-wo", "Of one\nt-wo"])
        self.assertEqual(self.said(pasted('"""One\ntwo"""') + "\n"), ["One\ntwo"])
        long = "\n".join(f"line {number}" for number in range(40))  # more than the window has
        self.assertEqual(self.said(pasted(long) + "\n"), [long])

    def test_a_terminal_without_a_cursor_gives_lines(self):
        self.assertEqual(self.said("One?\x1b[D\x1bOA\x1b[1;5C\n", TERM="dumb"), ["One?"])  # arrow keys are left out
        self.assertFalse(self.history.exists())

    def test_what_is_typed_while_an_answer_comes_is_next(self):
        program = self.terminal("--chat", "--max-new-tokens", "300", "--session", self.session)
        self.say(program, "One?\n", 1)
        program.wait_for(lambda screen: len(screen.normal.partition("One?\r\n")[2]) > 5)
        program.press("/retry\n\x04")
        self.assertEqual(program.end(), 0)
        self.assertEqual([role for role, _ in self.messages()], ["user", "assistant"])
        self.assertEqual(json.loads(self.history.read_text().splitlines()[-1]), "/retry")

    def test_a_chat_that_is_stopped_goes_on(self):
        program = self.terminal("--chat", "--max-new-tokens", "2", "--session", self.session, in_shell=True)
        self.say(program, "On", 1)
        program.wait_for(lambda screen: screen.normal.endswith("On"))
        program.press("\x1a")
        program.wait_for(lambda screen: "stopped" in screen.normal)
        self.assertEqual(termios.tcgetattr(program.slave), program.attributes)
        self.assertFalse(program.screen.marks_pastes)
        program.press("\n")
        program.wait_for(lambda screen: screen.normal.endswith("> On"))
        program.resize(60, 10)
        program.press("e?\n")
        self.say(program, "\x04", 3)
        self.assertEqual(program.end(), 0)
        self.assertEqual(self.messages()[0], ("user", "One?"))

    def test_an_answer_is_shown_while_it_is_made_and_ended_by_ctrl_c_and_the_chat_goes_on(self):
        whole, = self.chat("One?", new_tokens=400)
        for _ in range(10):  # an answer may be whole before the key is taken, if hardly ever
            self.session.unlink(missing_ok=True)
            program = self.terminal("--chat", "--max-new-tokens", "400", "--session", self.session)
            self.say(program, "One?\n", 1)
            program.wait_for(lambda screen: len(screen.normal.partition("One?\r\n")[2]) > 5)
            program.press("\x03")
            self.say(program, "\x04", 2)
            self.assertEqual(program.end(), 0)
            self.assertEqual([role for role, _ in self.messages()], ["user", "assistant"])
            begun = self.messages()[1][1]
            self.assertTrue(whole["text"].startswith(begun))
            if begun != whole["text"]:
                return
        self.fail("the answer was always whole when its first letters were read")

    def test_the_program_ends_where_it_is_asked_to(self):
        program = self.terminal("--chat", "--max-new-tokens", "6", "--session", self.session)
        self.say(program, "One?\n", 1)
        self.say(program, "half a mess", 2)
        program.process.send_signal(signal.SIGTERM)
        self.assertEqual(program.end(), 130)
        self.assertEqual([role for role, _ in self.messages()], ["user", "assistant"])
        # While it answers.
        program = self.terminal("--chat", "--max-new-tokens", "400")
        self.say(program, "One?\n", 1)
        program.wait_for(lambda screen: len(screen.normal.partition("One?\r\n")[2]) > 5)
        program.process.send_signal(signal.SIGTERM)
        self.assertEqual(program.end(), 130)
        # Where its window is closed.
        program = self.terminal("--chat")
        self.say(program, "", 1)
        program.hang_up()
        self.assertEqual(program.process.wait(LIMIT_S), 130)

    def test_several_adapters_answer_side_by_side_or_one_under_another(self):
        for columns in (120, 30):
            program = self.terminal("--prompt", "What is it?", "--max-new-tokens", "100", *self.several, columns=columns, rows=12)
            program.wait_for(lambda screen: "--- two ---" in screen.normal)
            self.assertEqual(program.end(), 0)
            first, last = program.screen.frames[0], program.screen.frames[-1]
            heads = [line.split() for line in first if line]
            names = ["base", "…"], ["one", "…"], ["two", "…"]
            self.assertEqual(heads, [sum(names, [])] if columns == 120 else list(names))
            self.assertGreater(sum(map(len, last)), 150)
            self.assertNotIn("…", last[0])
            for block in self.generate("--prompt", "What is it?", "--max-new-tokens", "100", *self.several).stdout.split("--- ")[1:]:
                self.assertIn(block.rstrip("\n"), program.screen.normal.replace("\r", "").replace("\x1b[0m", ""))

    def test_the_window_may_change_its_size_while_they_come(self):
        program = self.terminal("--prompt", "What is it?", "--max-new-tokens", "100", *self.several, columns=120, rows=20)
        program.wait_for(lambda screen: screen.is_alternate)
        program.press("\x13")  # holds the output back
        program.resize(24, 7)
        program.press("\x11")
        program.wait_for(lambda screen: any("and 1 more" in frame[-1] for frame in (lines[:7] for lines in screen.frames)))
        program.end()
        self.assertTrue(program.screen.fits)

    def test_a_chat_with_several_adapters_goes_on_after_an_interruption(self):
        program = self.terminal("--chat", "--max-new-tokens", "490", *self.several)
        self.say(program, "One?\n", 1)
        def answers_have_begun(screen):  # below the headings
            lines = [sum(map(bool, map(str.strip, frame))) for frame in screen.frames]
            return max(lines, default=0) > min(lines, default=0)
        program.wait_for(answers_have_begun)
        program.press("\x03")
        program.wait_for(lambda screen: not screen.is_alternate and screen.normal.endswith("> "))
        program.press("\x04")
        self.assertEqual(program.end(), 0)
        for name in ("base", "one", "two"):
            self.assertIn(f"--- {name} ---\r\n", program.screen.normal)


if __name__ == "__main__":
    unittest.main(verbosity=2)
