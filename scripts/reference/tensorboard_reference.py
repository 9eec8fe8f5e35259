#!/usr/bin/env python3
"""Writes tests/formats/data/tensorboard.events: an event file as TensorBoard's own protocol buffers and record writer make it.

Usage: .deps/venv/bin/python scripts/reference/tensorboard_reference.py > tests/formats/data/tensorboard.events
"""
import io
import sys

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalar(tag, value):
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def text(tag, words):
    metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[words.encode()])
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


EVENTS = [
    event_pb2.Event(wall_time=1.5e9, file_version="brain.Event:2"),
    event_pb2.Event(wall_time=1.5e9 + 0.25, step=8, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
    event_pb2.Event(wall_time=1.5e9 + 0.5, step=300,
                    summary=summary_pb2.Summary(value=[scalar("train/loss", 2.5), scalar("train/grad_norm", float("inf"))])),
    event_pb2.Event(wall_time=1.5e9 + 0.75, step=1 << 40, summary=summary_pb2.Summary(value=[text("sample/text_summary", "größe\n<b>")])),
]

buffer = io.BytesIO()
writer = RecordWriter(buffer)
for event in EVENTS:
    writer.write(event.SerializeToString(deterministic=True))
sys.stdout.buffer.write(buffer.getvalue())
