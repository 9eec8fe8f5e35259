#!/usr/bin/env python3
"""What data files may be: compressed JSONL, ShareGPT, tool calls, several files with weights, Parquet. transformers and pyarrow judge
where they are installed.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/data_files_test.py [UNITTEST OPTIONS]
"""
import bz2
import gzip
import io
import json
import lzma
import os
import re
import tarfile
import unittest
import zipfile

import needs
from program import PROGRAM, ProgramTest
from tiny_models import ROOT, copy_model

if needs.is_here("pyarrow"):
    import pyarrow
    import pyarrow.parquet
if needs.is_here("transformers"):
    import transformers

TEXTS = [{"text": f"example {i}"} for i in range(6)]
CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern", "days": 2}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
TOOL_CHAT = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
             {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "sun"}, {"role": "assistant", "content": "No."}]


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


class DataFiles(ProgramTest):
    def setUp(self):
        super().setUp()
        config = copy_model(self.path / "model") / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 8192}))
        (self.path / "plain.jsonl").write_bytes(lines(TEXTS))

    def write_jobs(self, data, more=""):
        path = self.path / "data.yaml"
        path.write_text(f"cotune: 1\nmodel: {{path: model, dtype: float32}}\njobs:\n  - {{name: one, data: {{{data}}}{more}}}\n")
        return path

    def shown(self, data, *options, **more):
        return self.run_program("data", self.write_jobs(data), *options, **more).stdout

    def examples(self, data, *options):
        """The examples that `cotune data` shows, without the lines that name their files."""
        text = self.shown(data, "--count", "100", *options)
        return [part.split("\n", 1)[1].strip("\n") for part in re.split(r"^--- ", text, flags=re.M)[1:]]

    def refused(self, data):
        return self.run_program("data", self.write_jobs(data), expect=2).stderr

    def test_compressed_files_hold_what_plain_ones_do(self):
        plain = self.examples("train: plain.jsonl")
        (self.path / "a.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS)))
        self.assertEqual(self.examples("train: a.jsonl.gz"), plain)
        (self.path / "no-ending").write_bytes(gzip.compress(lines(TEXTS[:3])) + gzip.compress(lines(TEXTS[3:])))
        self.assertEqual(self.examples("train: no-ending"), plain)
        (self.path / "plain.gz").write_bytes(lines(TEXTS))  # the bytes count, not the name
        self.assertEqual(self.examples("train: plain.gz"), plain)
        self.assertIn(f"--- {self.path}/a.jsonl.gz:2: ", self.shown("train: a.jsonl.gz"))
        if needs.is_here("pyarrow"):
            with pyarrow.output_stream(str(self.path / "a.zst"), compression="zstd") as stream:
                stream.write(lines(TEXTS))
            self.assertEqual(self.examples("train: a.zst"), plain)

    def test_damaged_and_truncated_files_are_named(self):
        whole = gzip.compress(lines(TEXTS * 1000))
        (self.path / "cut.gz").write_bytes(whole[:len(whole) // 2])
        self.assertRegex(self.refused("train: cut.gz"), r"cut\.gz: the gzip data end early, after \d+ bytes of content: the file was cut off")
        (self.path / "bad.gz").write_bytes(whole[:200] + bytes(100) + whole[300:])
        self.assertIn("bad.gz: damaged gzip data", self.refused("train: bad.gz"))
        (self.path / "mistake.gz").write_bytes(gzip.compress(lines(TEXTS) + b"{\n"))
        self.assertIn("mistake.gz:7: column 2: not JSON", self.refused("train: mistake.gz"))

    def test_objects_of_several_lines_are_told_from_lines(self):
        (self.path / "indented.jsonl").write_text(json.dumps({"text": "a"}, indent=2) + "\n")
        self.assertRegex(self.refused("train: indented.jsonl"), r"indented\.jsonl:1: column \d+: not JSON: .*; an object stands on one line .*`jq -c \.`")

    def foreign_files(self):
        """Files of kinds that are not read, by what they are."""
        content = lines(TEXTS)
        zipped, archive = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as file:
            file.writestr("a.jsonl", content)
        with tarfile.open(fileobj=archive, mode="w") as file:
            entry = tarfile.TarInfo("a.jsonl")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        yield "is compressed by bzip2", bz2.compress(content)
        yield "is compressed by bzip2", bz2.compress(b"")
        yield "is compressed by xz", lzma.compress(content)
        yield "is a zip archive", zipped.getvalue()
        yield "is a tar archive", archive.getvalue()
        yield "is text in UTF-16", content.decode().encode("utf-16")
        if not needs.is_here("pyarrow"):
            return
        from pyarrow import feather, orc
        table = pyarrow.Table.from_pylist(TEXTS)
        for name, write in (("is an Arrow IPC file (Feather)", feather.write_feather), ("is an ORC file", orc.write_table)):
            sink = io.BytesIO()
            write(table, sink)
            yield name, sink.getvalue()
        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield "is a stream of Arrow IPC, as the cache of `datasets` holds", sink.getvalue()
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(content)
        yield "is compressed by lz4", sink.getvalue().to_pybytes()

    def test_files_that_are_not_read_are_told_by_what_they_are(self):
        for name, content in self.foreign_files():
            with self.subTest(name):
                (self.path / "foreign.jsonl").write_bytes(content)
                errors = self.refused("train: foreign.jsonl")
                self.assertIn(f"foreign.jsonl: {name}; accepted are JSONL, plain or compressed by gzip or zstd, and Parquet: ", errors)
                self.assertNotIn("JSON:", errors)
                errors = self.run_program("generate", "--model", self.path / "model", "--prompts", self.path / "foreign.jsonl", expect=2).stderr
                self.assertIn(f"foreign.jsonl: {name}; accepted are", errors)

    def test_tables_of_separated_values_are_told_how_to_become_records(self):
        for name, content in (("rows.csv", b"prompt,completion\na,b\n"), ("rows.tsv.gz", gzip.compress(b"prompt\tcompletion\na\tb\n"))):
            (self.path / name).write_bytes(content)
            wanted = f"{name}: is a table of separated values; accepted are JSONL"
            self.assertIn(wanted, self.refused(f"train: {name}"))
            self.assertIn(wanted, self.run_program("generate", "--model", self.path / "model", "--prompts", self.path / name, expect=2).stderr)
        (self.path / "rows.csv").write_bytes(lines(TEXTS))  # records all the same
        self.assertNotIn("separated", self.refused("train: [rows.csv, none.jsonl]"))

    def test_sharegpt_is_learned_as_messages_are(self):
        chat = [{"from": "system", "value": "S"}, {"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
        messages = [{"role": role, "content": turn["value"]} for role, turn in zip(("system", "user", "assistant"), chat)]
        (self.path / "chats.jsonl").write_bytes(lines([{"messages": messages}]))
        (self.path / "sharegpt.jsonl").write_bytes(lines([{"conversations": chat}, {"conversations": chat[1:], "system": "S"}]))
        self.assertEqual(self.examples("train: sharegpt.jsonl"), self.examples("train: chats.jsonl") * 2)
        self.assertIn("⟦2\n⟧", self.examples("train: sharegpt.jsonl, format: sharegpt")[0])

    def test_prompts_and_completions_of_messages_are_chats_of_which_the_completion_is_learned(self):
        said = [("user", "1+1?"), ("assistant", "2"), ("user", "Sure?"), ("assistant", "Yes.")]
        turns = [{"role": role, "content": text} for role, text in said]
        (self.path / "trl.jsonl").write_bytes(lines([{"prompt": turns[:3], "completion": turns[3:]}]))
        (self.path / "chats.jsonl").write_bytes(lines([{"messages": [*turns[:1], {**turns[1], "weight": 0}, *turns[2:]]}]))
        for template in ("", f", chat_template: {ROOT}/tests/data/templates/qwen25.jinja"):
            wanted = self.examples("train: chats.jsonl" + template)
            self.assertEqual(self.examples("train: trl.jsonl" + template), wanted)
            self.assertEqual(self.examples("train: trl.jsonl, format: completion" + template), wanted)

    @needs.required("transformers")
    def test_tool_calls_render_as_transformers_does_and_their_replies_are_not_learned(self):
        from transformers.utils.chat_template_utils import render_jinja_template
        (self.path / "tools.jsonl").write_bytes(lines([{"messages": TOOL_CHAT, "tools": TOOLS}, {"messages": TOOL_CHAT, "tools": json.dumps(TOOLS)}]))
        for name, bos in (("qwen25", ""), ("llama31", "<|begin_of_text|>"), ("mistral_v3", "<s>")):
            source = (ROOT / f"tests/data/templates/{name}.jinja").read_text()
            date = "{%- set date_string = '26 Jul 2024' %}" if "strftime_now" in source else ""
            (self.path / "template.jinja").write_text(f"{{%- set bos_token = '{bos}' %}}{{%- set eos_token = '</s>' %}}{date}" + source)
            wanted = render_jinja_template([TOOL_CHAT], tools=TOOLS, chat_template=(self.path / "template.jinja").read_text())[0][0]
            shown = self.examples("train: tools.jsonl, chat_template: template.jinja")
            self.assertEqual(shown[0], shown[1])
            self.assertEqual(shown[0].replace("⟦", "").replace("⟧", "").strip("\n"), wanted.strip("\n"), name)
            learned = re.findall("⟦([^⟧]*)⟧", shown[0])
            self.assertEqual(len(learned), 2, shown[0])
            self.assertIn('"name": "weather"', learned[0])
            self.assertIn("No.", learned[1])
            self.assertNotIn("sun", "".join(learned))

    @needs.required("transformers")
    def test_chats_with_tools_take_the_template_that_transformers_takes(self):
        from transformers import PreTrainedTokenizerFast
        chats = {"with": {"messages": TOOL_CHAT, "tools": TOOLS}, "none": {"messages": [TOOL_CHAT[0], TOOL_CHAT[3]]},
                 "empty": {"messages": [TOOL_CHAT[0], TOOL_CHAT[3]], "tools": []}}
        for name, chat in chats.items():
            (self.path / f"{name}.jsonl").write_bytes(lines([chat]))
        turns = "{% for m in messages %}<{{ m.role }}>{{ m.content or m.tool_calls|tojson }}|{% endfor %}"
        templates = {"default": "plain " + turns, "rag": "rag", "tool_use": "tools {{ tools|tojson }} " + turns}
        model = self.path / "model"
        listed = [{"name": name, "template": template} for name, template in templates.items()]
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))

        def compare():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
            for name, chat in chats.items():
                wanted = tokenizer.apply_chat_template(chat["messages"], tools=chat.get("tools"), tokenize=False)
                self.assertIn("plain " if name == "none" else "tools ", wanted)
                shown = self.examples(f"train: {name}.jsonl")[0]
                self.assertEqual(shown.replace("⟦", "").replace("⟧", "").strip("\n"), wanted)
        compare()
        for name in templates:  # the files go before the list
            (model / "additional_chat_templates").mkdir(exist_ok=True)
            file = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
            (model / file).write_text(templates[name].replace(" ", " new ", 1))
        compare()
        self.assertIn("tools new ", self.examples("train: with.jsonl")[0])

    def test_function_calls_of_sharegpt_are_tool_calls(self):
        conversation = [{"from": "human", "value": "Rain?"}, {"from": "function_call", "value": json.dumps(CALL["function"])},
                        {"from": "observation", "value": "sun"}, {"from": "gpt", "value": "No."}]
        call = {"type": "function", "function": CALL["function"]}
        messages = [TOOL_CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "sun"}, TOOL_CHAT[3]]
        (self.path / "sharegpt.jsonl").write_bytes(lines([{"conversations": conversation, "tools": json.dumps(TOOLS)}]))
        (self.path / "chats.jsonl").write_bytes(lines([{"messages": messages, "tools": TOOLS}]))
        template = f"chat_template: {ROOT}/tests/data/templates/qwen25.jinja"
        self.assertEqual(self.examples(f"train: sharegpt.jsonl, {template}"), self.examples(f"train: chats.jsonl, {template}"))

    def test_tool_calls_that_the_template_leaves_out_are_told_wherever_data_are_read(self):
        (self.path / "tools.jsonl").write_bytes(lines([{"messages": TOOL_CHAT, "tools": TOOLS}] * 3 + [{"messages": [TOOL_CHAT[0], TOOL_CHAT[3]]}]))
        calls = f"{self.path}/tools.jsonl: the chat template leaves out the tool calls of 3 of its 4 records"
        tools = f"{self.path}/tools.jsonl: the chat template leaves out the tools of 3 of its 4 records"
        for time in ("now", "before"):  # a set that is cached says it too
            shown = self.shown("train: tools.jsonl")
            self.assertIn(f"tokenized {time}", shown)
            self.assertIn(f"warning: {calls}", shown)
            self.assertIn(f"warning: {tools}", shown)
        jobs = self.write_jobs("train: tools.jsonl", ", train: {steps: 2}")
        self.assertEqual(self.run_program("train", jobs, "--check").stdout.count(f"warning: {calls}"), 1)
        file = json.loads(self.run_program("train", jobs, "--check", "--json").stdout)["jobs"][0]["files"][0]
        self.assertEqual((file["without_tool_calls"], file["without_tools"]), (3, 3))
        shown = self.run_program("train", jobs, "--output-dir", self.path / "run").stdout
        self.assertEqual((shown.count(f"job `one`: {calls}"), shown.count(f"job `one`: {tools}")), (1, 1))
        notices = [event["text"] for event in self.metrics("run") if event["event"] == "notice"]
        self.assertEqual(len([text for text in notices if "leaves out" in text]), 2)
        shown = self.shown(f"train: tools.jsonl, chat_template: {ROOT}/tests/data/templates/qwen25.jinja")
        self.assertNotIn("leaves out", shown)

    def test_what_alpacas_prompt_leaves_out_is_told_wherever_data_are_read(self):
        record = {"instruction": "a", "input": "", "output": "b"}
        records = [{**record, "system": "sys", "history": [["x", "y"]]}, {**record, "system": "", "history": []}]
        (self.path / "alpaca.jsonl").write_bytes(lines(records))
        kinds = ["jsonl"]
        if needs.is_here("pyarrow"):
            kinds.append("parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), self.path / "alpaca.parquet")
        for kind in kinds:
            for time in ("now", "before"):
                shown = self.shown(f"train: alpaca.{kind}")
                self.assertIn(f"tokenized {time}", shown)
                for what in ("system text", "history"):
                    warning = f"warning: {self.path}/alpaca.{kind}: Alpaca's prompt leaves out the {what} of 1 of its 2 records, "
                    self.assertIn(warning, shown)
        jobs = self.write_jobs("train: alpaca.jsonl", ", train: {steps: 2}")
        file = json.loads(self.run_program("train", jobs, "--check", "--json").stdout)["jobs"][0]["files"][0]
        self.assertEqual((file["without_system"], file["without_history"]), (1, 1))

    def test_several_files_are_one_after_the_other(self):
        (self.path / "more.jsonl").write_bytes(lines([{"prompt": "p", "completion": "c"}]))
        text = self.shown("train: [plain.jsonl, {path: more.jsonl}]", "--count", "7")
        self.assertIn("train:    7 examples", text)
        self.assertIn(f"--- {self.path}/plain.jsonl:6: ", text)
        self.assertIn(f"--- {self.path}/more.jsonl:1: ", text)
        self.assertIn("train:    3 examples", self.shown("train: [plain.jsonl, more.jsonl], max_examples: 2"))

    def test_weights_are_shown_and_mistakes_in_them_named(self):
        (self.path / "more.jsonl").write_bytes(lines(TEXTS[:2]))
        text = self.shown("train: [{path: plain.jsonl, weight: 1}, {path: more.jsonl, weight: 3}]")
        self.assertIn(f"2 of the 8 examples of an epoch are from {self.path}/plain.jsonl (weight 1), which holds 6", text)
        self.assertIn(f"6 of the 8 examples of an epoch are from {self.path}/more.jsonl (weight 3), which holds 2", text)
        self.assertIn("data.yaml:4: jobs[0].data.train: `more.jsonl` has no weight, others have",
                      self.refused("train: [{path: plain.jsonl, weight: 1}, more.jsonl]"))
        self.assertIn("a weight must be a number above 0 and at most 1000000000, got 0",
                      self.refused("train: [{path: plain.jsonl, weight: 0}]"))
        self.assertIn("must be a path, or a list of paths or of {path: …, weight: …}, got the key file",
                      self.refused("train: [{file: plain.jsonl}]"))
        self.assertIn(f"jobs[0].data.train: no such file or folder: {self.path}/none.jsonl",
                      self.refused("train: [plain.jsonl, none.jsonl]"))

    def train(self, data, run, *options, steps=9, expect=0):
        jobs = self.write_jobs(data, f", adapter: {{r: 4}}, train: {{batch_size: 2, steps: {steps}, lr: 1e-2, save_steps: 2}}")
        return self.run_program("train", jobs, "--output-dir", self.path / run, *options, expect=expect)

    def test_a_weighted_job_goes_on_as_if_it_had_never_stopped(self):
        (self.path / "more.jsonl").write_bytes(lines(TEXTS[:2]))
        data = "train: [{path: plain.jsonl, weight: 1}, {path: more.jsonl, weight: 3}]"
        self.train(data, "whole")
        options = ("--output-dir", self.path / "stopped", "--json")
        process = self.start_program("train", self.path / "data.yaml", *options)
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] == 5)
        self.kill(process)
        self.run_program("train", self.path / "data.yaml", *options, "--resume")
        self.assertEqual(self.adapter("whole", "one"), self.adapter("stopped", "one"))
        changed = (self.path / "data.yaml").read_text().replace("weight: 3", "weight: 2")
        (self.path / "data.yaml").write_text(changed)
        errors = self.run_program("train", self.path / "data.yaml", *options, "--resume", expect=2).stderr
        self.assertIn(f"jobs.one.data.train[1]: {self.path}/more.jsonl: weight 3, now weight 2", errors)
        (self.path / "data.yaml").write_text(changed.replace("[{path", "[{path: third.jsonl, weight: 1}, {path").replace("weight: 2", "weight: 3"))
        (self.path / "third.jsonl").write_bytes(lines(TEXTS[:1]))
        errors = self.run_program("train", self.path / "data.yaml", *options, "--resume", expect=2).stderr
        self.assertIn(f"jobs.one.data.train[0]: {self.path}/third.jsonl: is not among the files of before, weight 1 now", errors)

    def test_committed_parquet_files_are_read_as_the_same_records_of_jsonl(self):
        for name, count in (("chats", 2), ("conversations", 1), ("tokens", 5)):
            file = ROOT / "tests/data/parquet" / name
            shown = self.examples(f"train: {file}.parquet")
            self.assertEqual(len(shown), count)
            self.assertEqual(shown, self.examples(f"train: {file}.jsonl"), name)
            self.assertIn(f"--- {file}.parquet:{count}: ", self.shown(f"train: {file}.parquet", "--count", "9"))
        whole = (ROOT / "tests/data/parquet/tokens.parquet").read_bytes()
        (self.path / "cut.parquet").write_bytes(whole[:len(whole) // 2])
        self.assertIn("cut.parquet: cannot be read as Parquet: ", self.refused("train: cut.parquet"))

    def test_a_committed_parquet_file_trains_as_jsonl_does(self):
        for kind in ("jsonl", "parquet"):
            self.train(f"train: {ROOT}/tests/data/parquet/tokens.{kind}", kind)
        self.assertEqual(self.adapter("jsonl", "one"), self.adapter("parquet", "one"))

    @needs.required("pyarrow")
    def test_parquet_rows_are_read_as_the_same_records_of_jsonl(self):
        records = {
            "texts": TEXTS,
            "chats": [{"messages": TOOL_CHAT, "tools": json.dumps(TOOLS)}, {"messages": TOOL_CHAT[:1] + TOOL_CHAT[3:], "tools": None}],
            "conversations": [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "ä"}], "id": 3}],
            "tokens": [{"input_ids": [49, 43, 50], "labels": [-100, -100, 50]}] * 3,
            "alpaca": [{"instruction": "Add.", "input": None, "output": "2"}, {"instruction": "Add.", "input": "1 1", "output": "2"}],
        }
        for name, rows in records.items():
            (self.path / f"{name}.jsonl").write_bytes(lines(rows))
            table = pyarrow.Table.from_pylist(rows)
            for compression in ("none", "snappy", "zstd", "gzip"):
                pyarrow.parquet.write_table(table, self.path / f"{name}.parquet", compression=compression, row_group_size=2)
                self.assertEqual(self.examples(f"train: {name}.parquet"), self.examples(f"train: {name}.jsonl"), name)
        self.assertIn(f"--- {self.path}/tokens.parquet:3: ", self.shown("train: tokens.parquet"))
        large = pyarrow.table({"text": pyarrow.array(["a", "b"] * 1000).dictionary_encode(), "image": pyarrow.array([b"x"] * 2000)})
        pyarrow.parquet.write_table(large, self.path / "large")
        self.assertIn("train:    2000 examples", self.shown("train: large"))

    @needs.required("pyarrow")
    def test_parquet_chats_of_several_row_groups_are_read_as_one(self):
        rows = [{"messages": [{"role": "user", "content": f"q{i % 700}"}, {"role": "assistant", "content": f"a{i}"}]} for i in range(2600)]
        (self.path / "many.jsonl").write_bytes(lines(rows))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.path / "many.parquet", row_group_size=1000)
        self.assertIn("train:    2600 examples", self.shown("train: many.parquet"))
        last = [self.shown(f"train: many.{kind}", "--count", "2600").splitlines()[-1] for kind in ("jsonl", "parquet")]
        self.assertEqual(*last)

    @needs.required("pyarrow")
    def test_parquet_files_that_cannot_be_learned_are_named(self):
        pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "answer": ["b"]}), self.path / "other.parquet")
        self.assertRegex(self.refused("train: other.parquet"), r"other\.parquet: expected columns among messages, .*; found question, answer; "
                                                               r"question and answer are accepted under the names prompt and completion")
        pyarrow.parquet.write_table(pyarrow.table({"text": [b"bytes"]}), self.path / "bytes.parquet")
        self.assertIn("bytes.parquet: column `text` holds binary, which is no text, number or list of them", self.refused("train: bytes.parquet"))
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", None], "completion": ["b", "c"]}), self.path / "null.parquet")
        self.assertIn("null.parquet:2: prompt: is null; expected prompt and completion in every row\n", self.refused("train: null.parquet"))
        self.assertIn("null.parquet:2: prompt: is null; expected", self.refused("train: null.parquet, format: completion"))
        whole = (self.path / "null.parquet").read_bytes()
        (self.path / "cut.parquet").write_bytes(whole[:len(whole) // 2])
        self.assertIn("cut.parquet: cannot be read as Parquet: ", self.refused("train: cut.parquet"))

    @needs.required("pyarrow")
    def test_what_parquet_holds_is_called_rows(self):
        columns = {"text": ["a", "b", None, None, None, None, None], "prompt": [None, None] + ["x"] * 5}
        pyarrow.parquet.write_table(pyarrow.table(columns), self.path / "rows.parquet")
        errors = self.refused("train: rows.parquet")
        self.assertIn("rows.parquet:3: text: is null; expected text in every row\n", errors)
        self.assertIn("rows.parquet:7: and 2 more such rows, this is the last\n", errors)
        self.assertNotIn("line", errors)
        columns = {"prompt": [None, "a"], "completion": ["c", "b"], "text": [None, "d"]}
        pyarrow.parquet.write_table(pyarrow.table(columns), self.path / "rows.parquet")
        self.assertRegex(self.refused("train: rows.parquet"),
                         r"rows\.parquet:1: expected the fields messages; .*; found completion, prompt \(null\), text \(null\)\n")
        columns = {"prompt": ["a", "b"], "completion": ["c", "b"], "messages": [None, [{"role": "user", "content": "d"}]]}
        pyarrow.parquet.write_table(pyarrow.table(columns), self.path / "rows.parquet")
        self.assertIn("rows.parquet:2: expected the fields prompt and completion, as in row 1: a file has one format; found ",
                      self.refused("train: rows.parquet"))

    @needs.required("pyarrow")
    def test_parquet_rows_longer_than_a_line_may_be_are_named(self):
        offsets = pyarrow.array([0, 4, 20_000_004, 20_000_008], pyarrow.int32())
        tokens = pyarrow.ListArray.from_arrays(offsets, pyarrow.nulls(20_000_008, pyarrow.int8()).fill_null(1))
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": tokens, "labels": tokens}), self.path / "long.parquet", compression="zstd")
        self.assertIn("long.parquet:2: the row is longer than 64 MiB", self.refused("train: long.parquet"))

    @needs.required("pyarrow")
    def test_a_text_that_parquet_repeats_is_in_memory_once(self):
        texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1] * 600, pyarrow.int32()), pyarrow.array(["a" * (8 << 20), "b"]))
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), self.path / "texts.parquet", compression="zstd", store_schema=False)
        jobs = self.write_jobs("train: texts.parquet, max_examples: 2, max_length: 64")
        program = os.posix_spawn(PROGRAM, self.command("data", jobs, "--count", "0"), os.environ,
                                 file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
        _, status, usage = os.wait4(program, 0)
        self.assertEqual(status, 0)
        self.assertLess(usage.ru_maxrss, 1 << 20)  # KiB; 256 rows as plain texts are 1 GiB, and more while they are read

    @needs.required("pyarrow")
    def test_maps_of_texts_are_read_from_parquet(self):
        arguments = pyarrow.array([[("city", "Bern")]] * 2, pyarrow.map_(pyarrow.string(), pyarrow.string()))
        call = pyarrow.StructArray.from_arrays([pyarrow.array(["weather"] * 2), arguments], ["name", "arguments"])
        chats = pyarrow.array([[("user", "Rain?"), ("assistant", "No.")]] * 2,
                              pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])))
        tools = pyarrow.ListArray.from_arrays([0, 1, 2], call)
        pyarrow.parquet.write_table(pyarrow.table({"messages": chats, "tools": tools}), self.path / "maps.parquet")
        messages = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "No."}]
        record = {"messages": messages, "tools": [{"name": "weather", "arguments": {"city": "Bern"}}]}
        (self.path / "maps.jsonl").write_bytes(lines([record] * 2))
        template = f"chat_template: {ROOT}/tests/data/templates/qwen25.jinja"
        shown = self.examples(f"train: maps.parquet, {template}")
        self.assertIn("Bern", shown[0])
        self.assertEqual(shown, self.examples(f"train: maps.jsonl, {template}"))

    @needs.required("pyarrow")
    def test_parquet_trains_as_jsonl_does(self):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TEXTS), self.path / "texts.parquet")
        self.train("train: plain.jsonl", "jsonl")
        self.train("train: texts.parquet", "parquet")
        self.assertEqual(self.adapter("jsonl", "one"), self.adapter("parquet", "one"))


if __name__ == "__main__":
    unittest.main()
