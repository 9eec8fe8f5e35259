#!/usr/bin/env python3
"""Writes tests/data/parquet: small Parquet files as pyarrow makes them, and beside each the same records as JSONL.

Usage: .deps/venv/bin/python scripts/reference/parquet_reference.py
"""
import json
import pathlib

import pyarrow
import pyarrow.parquet

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/data/parquet"
CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern", "days": 2}}}
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}])
RECORDS = {  # name: compression, rows
    "chats": ("zstd", [
        {"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                      {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "sun"},
                      {"role": "assistant", "content": "No."}], "tools": TOOLS},
        {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}], "tools": None}]),
    "conversations": ("gzip", [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "ä"}], "id": 3}]),
    "tokens": ("snappy", [{"input_ids": [49, 43, 50 + i], "labels": [-100, -100, 50 + i]} for i in range(5)]),
}

FOLDER.mkdir(exist_ok=True)
for name, (compression, rows) in RECORDS.items():
    table = pyarrow.Table.from_pylist(rows)
    if name == "tokens":
        table = table.cast(pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32())), ("labels", pyarrow.large_list(pyarrow.int64()))]))
    pyarrow.parquet.write_table(table, FOLDER / f"{name}.parquet", compression=compression, row_group_size=2)
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
