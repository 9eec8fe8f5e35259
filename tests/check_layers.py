#!/usr/bin/env python3
"""Checks that the #include lines in src/ follow the layer order written in docs/architecture.md.

    python3 tests/check_layers.py [--root FOLDER]

docs/architecture.md holds one fenced block that starts with ```layers and lists one layer a line, lowest first:

    base:
    jobs: base
    model/config: base jobs
    ops: base model/config torch
    cli: *

Before the colon stands the layer's folder below src/; after it the layers its files may include besides their own, each
one listed further up (`*`: all of them), and `torch` where the headers of libtorch may be included. Commas may separate
the names, and # starts a remark. A file belongs to the layer with the longest folder that holds it; every C++ file in
src/ must belong to one, and every quoted include must name a file by its path below src/. Who may include a folder may include the
layers inside it; these themselves only what stands in their own line.
"""
import argparse
import pathlib
import re
import sys

SOURCE_ENDINGS = {".h", ".cc", ".cu", ".cuh", ".inc"}
TORCH = "torch"
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
TORCH_INCLUDE = re.compile(r"^(ATen|torch|c10)/")


def read_layers(path):
    """Layer → the set of names it may include, in the order of the document, and a list of mistakes."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip() == "```layers"]
    if len(starts) != 1:
        return {}, [f"{path}: needs exactly one block that starts with ```layers, has {len(starts)}"]
    layers, mistakes = {}, []
    for number, line in enumerate(lines[starts[0] + 1:], starts[0] + 2):
        if line.strip().startswith("```"):
            break
        text = line.split("#")[0].strip()
        if not text:
            continue
        name, colon, uses = text.partition(":")
        name, uses = name.strip(), uses.replace(",", " ").split()
        where = f"{path}:{number}"
        if not colon:
            mistakes.append(f"{where}: expected 'layer: lower layers', found '{text}'")
        elif name in layers:
            mistakes.append(f"{where}: layer {name} is listed twice")
        else:
            mistakes += [f"{where}: {name} may use {use}, which is no layer listed above it"
                         for use in uses if use not in layers and use not in ("*", TORCH)]
            allowed = set(uses) - {"*"}
            layers[name] = allowed | set(layers) if "*" in uses else allowed
    return layers, mistakes


def layer_of(path, layers):
    """The layer with the longest folder that holds `path` (below src/), or None."""
    return max((name for name in layers if path.startswith(name + "/")), key=len, default=None)


def may_include(layer, other, layers):
    return other in layers[layer] or any(other.startswith(use + "/") and not layer.startswith(use + "/") for use in layers[layer])


def check_file(file, source, layers):
    name = file.relative_to(source).as_posix()
    layer = layer_of(name, layers)
    if layer is None:
        return [f"src/{name}: belongs to no layer listed in docs/architecture.md"]
    mistakes = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, included = match.groups()
        where = f"src/{name}:{number}"
        if quote == "<":
            if TORCH_INCLUDE.match(included) and TORCH not in layers[layer]:
                mistakes.append(f"{where}: layer {layer} may not include torch's <{included}>")
        elif not (source / included).is_file():
            mistakes.append(f'{where}: "{included}" is no file below src/ (includes are written from there)')
        else:
            other = layer_of(included, layers)
            if other is not None and other != layer and not may_include(layer, other, layers):
                mistakes.append(f'{where}: layer {layer} may not include "{included}" of layer {other}; '
                                f"it may use: {' '.join(sorted(layers[layer])) or 'nothing'}")
    return mistakes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    document = root / "docs/architecture.md"
    if not document.exists():
        sys.exit(f"{document} is missing: it holds the order of the layers")
    layers, mistakes = read_layers(document)
    files = sorted(file for file in (root / "src").rglob("*") if file.suffix in SOURCE_ENDINGS)
    if layers:
        mistakes += [f"{document}: layer {name} has no folder src/{name}" for name in layers if not (root / "src" / name).is_dir()]
        for file in files:
            mistakes += check_file(file, root / "src", layers)
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"{len(files)} files in {len(layers)} layers follow the order in docs/architecture.md")


if __name__ == "__main__":
    main()
