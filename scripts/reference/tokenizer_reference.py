#!/usr/bin/env python3
"""Compares the tokenizer with the Hugging Face `tokenizers` library.

  tokenizer_reference.py --write            rewrites tests/data/tokenizers (small, committed)
  tokenizer_reference.py --live --test PROGRAM [--smollm GGUF] [--vocabularies FOLDER] [--tokenizer tokenizer.json ...]
                         [--work FOLDER]    compares on a few MB of text with real vocabularies; PROGRAM is test_data.
                                            FOLDER: as vocabularies.py fetches it (GPT-2, Llama 3, Qwen, DeepSeek, Tekken)

A case is a folder with
  tokenizer.json or gguf_vocabulary.json
  texts.bin      little-endian u32 length and bytes (any bytes), repeated; here or in the folder above
  expected.txt   one line per text:  text HASH_OF_IDS HASH_OF_DECODED [ids]
                 then lines          ids HASH_OF_DECODED HASH_OF_DECODED_WITHOUT_SPECIAL ids
Hashes are FNV-1a 64 of the ids as little-endian i32, or of the UTF-8 text. Everything is deterministic.
Needs the Python packages tokenizers and transformers, and gguf for --smollm.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "tests/data/tokenizers"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

def sentences():
    text = pathlib.Path(__file__).with_name("tokenizer_sentences.txt").read_text(encoding="utf-8")
    return [json.loads('"' + line + '"') for line in text.splitlines() if line]


SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2009", "\u0085", "\u2028",
          "\u180e", "\u200b", "\u1680", "\x0b", "\x1f", " \t", "        "]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'vE", "'m", "'ll", "'LL", "'d", "'\u017f", "\u2019s", "'", "''", "'x"]
ASCII = [chr(c) for c in range(128)]
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "☃️", "1️⃣", "❤️‍🔥", "😀", "🫠", "🩷"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "[INST]",
           "<|eot_id|>", "<tool>", "<0x41>", "<|im_", "▁", "Ġ", "Ċ"]
SCRIPTS = [(0x61, 0x7a), (0x41, 0x5a), (0xc0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x5f4), (0x600, 0x6ff),
           (0x900, 0x97f), (0xe00, 0xe5b), (0x1100, 0x11ff), (0x1e00, 0x1eff), (0x3040, 0x30ff), (0x4e00, 0x9fff),
           (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xff01, 0xff9f), (0x1d400, 0x1d7ff), (0x20000, 0x20fff),
           (0x2ebf0, 0x2ee5d), (0x31350, 0x323af)]
MARKS = [(0x300, 0x36f), (0x483, 0x487), (0x591, 0x5bd), (0x64b, 0x65f), (0x93c, 0x94d), (0x3099, 0x309a),
         (0x1dc0, 0x1dff), (0x20d0, 0x20f0), (0xfe00, 0xfe0f), (0x1e000, 0x1e02a)]
DIGITS = [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96f), (0xff10, 0xff19), (0x2160, 0x2188), (0xb2, 0xb3),
          (0x1d7ce, 0x1d7ff), (0x3021, 0x3029), (0x11de0, 0x11de9), (0x16ff4, 0x16ff6)]
SYMBOLS = [(0x21, 0x2f), (0x3a, 0x40), (0x5b, 0x60), (0x7b, 0x7e), (0xa1, 0xbf), (0x2010, 0x205e), (0x20a0, 0x20c0),
           (0x2190, 0x23ff), (0x3001, 0x303f), (0x1f300, 0x1faff), (0x0, 0x1f), (0x7f, 0x9f), (0xe000, 0xe010),
           (0xfff0, 0xffff), (0x10fff0, 0x10ffff)]


def one_of(rng, table):
    a, b = rng.choice(table)
    return chr(rng.randint(a, b))


def random_text(rng, pieces):
    out = []
    for _ in range(pieces):
        kind = rng.randrange(14)
        if kind < 4:
            script = rng.choice(SCRIPTS)
            out.append("".join(chr(rng.randint(*script)) for _ in range(rng.randint(1, 9))))
        elif kind < 6:
            out.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
        elif kind == 6:
            out.append("".join(one_of(rng, DIGITS) for _ in range(rng.randint(1, 7))))
        elif kind == 7:
            out.append("".join(one_of(rng, SYMBOLS) for _ in range(rng.randint(1, 4))))
        elif kind == 8:
            out.append(rng.choice("aeounAEOIq한각가ᄀ") + "".join(one_of(rng, MARKS) for _ in range(rng.randint(1, 4))))
        elif kind == 9:
            out.append(rng.choice("we it I THEY ё 我".split()) + rng.choice(CONTRACTIONS))
        elif kind == 10:
            out.append("".join(rng.choice(ASCII) for _ in range(rng.randint(1, 8))))
        elif kind == 11:
            out.append(rng.choice(EMOJI))
        elif kind == 12:
            out.append(rng.choice(SPECIAL))
        else:
            out.append(" " * rng.randint(1, 3))
    return "".join(out)


def random_bytes(rng, length):
    out = bytearray()
    while len(out) < length:
        if rng.random() < 0.5:
            out += bytes(rng.randrange(256) for _ in range(rng.randint(1, 6)))
        else:
            c = one_of(rng, SCRIPTS).encode()
            out += c[: rng.randint(1, len(c))]
    return bytes(out)


def every_code_point(step):
    block = []
    for c in range(0, 0x110000, step):
        if 0xD800 <= c < 0xE000 or unicodedata.category(chr(c)) == "Co" and c % 997:
            continue
        if 0x40000 <= c < 0xE0000 and c % 4001:
            continue
        block.append(("a" if c % 3 == 0 else " " if c % 3 == 1 else "") + chr(c))
        if len(block) == 64:
            yield "".join(block)
            block = []
    yield "".join(block)


def texts(size):
    """Texts as bytes; `size` 1 gives about 150 kB, more gives more. No file of the machine is read."""
    rng = random.Random(20261121)
    out = [b"", b" ", b"a", b"\n", b"\xff", "\u0301".encode(), b"\xe4\xb8", b" a", b"a "]
    out += [s.encode() for s in sentences()]
    out += ["".join(sentences()).encode()]
    out += [random_text(rng, rng.randint(1, 40)).encode() for _ in range(500 * size)]
    out += [random_bytes(rng, rng.randint(1, 60)) for _ in range(100 * size)]
    out += [t.encode() for t in every_code_point(67 if size == 1 else 1)]
    for n in (1, 2, 3, 7, 100, 1000):
        out += [b"a" * n, b" " * n, b" " * n + b"b", b"\n" * n, b"ab" * n, b"1" * n, "é".encode() * n, b"!" * n]
    return out


def texts_of_this_machine(limit):
    """Licences and the source of Python's library, for English prose and code."""
    out = []
    for pattern in (["/usr/share/common-licenses", "*"], [os.path.dirname(os.__file__), "*.py"]):
        total = 0
        for path in sorted(pathlib.Path(pattern[0]).glob(pattern[1])):
            if not path.is_file() or total > limit:
                continue
            out.append(path.read_bytes()[:50_000])
            total += len(out[-1])
    return out


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def write_texts(path, all_texts):
    with open(path, "wb") as f:
        for t in all_texts:
            f.write(struct.pack("<I", len(t)) + t)


def write_expected(folder, tokenizer, all_texts, with_ids, streams):
    lines = []
    for i, t in enumerate(all_texts):
        ids = tokenizer.encode(t.decode("utf-8", "replace")).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        full = with_ids == "all" or (with_ids == "some" and i % 20 == 0 and len(ids) < 200)
        lines.append(" ".join(["text", fnv1a(struct.pack(f"<{len(ids)}i", *ids)), fnv1a(decoded.encode())] +
                              (list(map(str, ids)) if full else [])))
    rng = random.Random(7)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    for _ in range(streams):
        ids = [rng.randrange(size + 2) if rng.random() < 0.6 else rng.randrange(min(size, 300))
               for _ in range(rng.randint(1, 30))]
        lines.append(" ".join(["ids"] + [fnv1a(tokenizer.decode(ids, skip_special_tokens=s).encode())
                                         for s in (False, True)] + list(map(str, ids))))
    (folder / "expected.txt").write_text("\n".join(lines) + "\n")


# The families, as their tokenizer.json files describe them.

def special(*contents, **options):
    return [AddedToken(c, special=True, normalized=False, **options) for c in contents]


def byte_level(kind):
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        specials = special("<|endoftext|>")
    elif kind == "llama3":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bytes_only])
        specials = special("<|begin_of_text|>", "<|eot_id|>")
    elif kind == "qwen2":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), bytes_only])
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        specials = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
        specials = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    t.decoder = decoders.ByteLevel()
    return t, specials


def marks_spaces(t):
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])


def train(kind, corpus, merges):
    if kind == "llama2":
        t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        marks_spaces(t)
        trainer = trainers.BpeTrainer(vocab_size=259 + 150 + merges, limit_alphabet=150, show_progress=False,
                                      special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
        t.train_from_iterator(corpus, trainer)
        data = json.loads(t.to_str())
        data["added_tokens"] = []
        t = Tokenizer.from_str(json.dumps(data))
        t.add_special_tokens(special("<unk>", "<s>", "</s>"))
        return t
    t, specials = byte_level(kind)
    first = [s.content for s in specials] if kind in ("gpt2", "smollm") else []  # the others have them at the end
    trainer = trainers.BpeTrainer(vocab_size=len(first) + 256 + merges, show_progress=False, special_tokens=first,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(corpus, trainer)
    t.add_special_tokens(specials)
    if kind == "qwen2":
        t.add_tokens([AddedToken("<tool>", normalized=False)])
        t.add_tokens([AddedToken("[INST]", lstrip=True, rstrip=True, normalized=True)])
        t.add_tokens([AddedToken("we", single_word=True, normalized=True)])
    if kind == "llama3":
        begin = t.token_to_id("<|begin_of_text|>")
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="$A $B",
                                          special_tokens=[("<|begin_of_text|>", begin)])])
    return t


def write_committed():
    COMMITTED.mkdir(parents=True, exist_ok=True)
    all_texts = texts(1)
    write_texts(COMMITTED / "texts.bin", all_texts)
    corpus = [t.decode("utf-8", "replace") for t in all_texts[:300]] + sentences() * 20
    for kind in ("gpt2", "llama3", "qwen2", "smollm", "llama2"):
        folder = COMMITTED / kind
        folder.mkdir(exist_ok=True)
        t = train(kind, corpus, 400)
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False,
                                                          separators=(",", ":")) + "\n")
        write_expected(folder, Tokenizer.from_file(str(folder / "tokenizer.json")), all_texts, "some", 60)
    folder = COMMITTED / "gguf_llama"
    folder.mkdir(exist_ok=True)
    write_expected(folder, gguf_llama_case(folder), all_texts, "some", 60)


def gguf_llama_case(folder):
    """The vocabulary of the llama2 case with scores in place of merges, as llama.cpp converts SentencePiece models, and the
    tokenizer.json that transformers makes of such a vocabulary."""
    from transformers.tokenization_utils_base import generate_merges
    vocabulary = json.loads((COMMITTED / "llama2/tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    types[-1] = 4
    scores = [0.0 if kind != 1 else float(259 - i) for i, kind in enumerate(types)]
    (folder / "gguf_vocabulary.json").write_text(json.dumps(
        {"model": "llama", "tokens": tokens, "token_types": types, "scores": scores, "bos": 1}, ensure_ascii=False, separators=(",", ":")) + "\n")
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=generate_merges(vocabulary, dict(zip(tokens, scores))), fuse_unk=True, byte_fallback=True))
    marks_spaces(t)
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    t.add_tokens([AddedToken(tokens[-1], normalized=False)])
    return t


# Real vocabularies.

def from_ranks(ranks, pattern, digits=False, nfc=False, specials=(), ignore_merges=False):
    """A tokenizer.json model from token bytes and ranks, in the way transformers converts tiktoken files."""
    alphabet = byte_alphabet()
    text = lambda b: "".join(alphabet[x] for x in b)
    merges = []
    for token, rank in ranks.items():
        local = [(token[:i], token[i:]) for i in range(1, len(token))
                 if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], text(a), text(b)) for a, b in local]
    merges.sort()
    model = models.BPE(vocab={text(k): v for k, v in ranks.items()}, merges=[m[3:] for m in merges],
                       ignore_merges=ignore_merges)
    t = Tokenizer(model)
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(special(*specials))
    return t


def byte_alphabet():
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    out, n = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in printable else chr(256 + n)
        n += b not in printable
    return out


def smollm_case(path, folder):
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    value = {k: fields["tokenizer.ggml." + k].contents() for k in ("pre", "tokens", "token_type", "merges")}
    (folder / "gguf_vocabulary.json").write_text(json.dumps({
        "pre": value["pre"], "tokens": value["tokens"], "token_types": value["token_type"],
        "merges": value["merges"]}))
    t = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(value["tokens"])},
                             merges=[tuple(m.split(" ")) for m in value["merges"]]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(special(*[t for t, k in zip(value["tokens"], value["token_type"]) if k == 3]))
    t.add_tokens([AddedToken(t, normalized=False) for t, k in zip(value["tokens"], value["token_type"]) if k == 4])
    return t


def tiktoken_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_text().splitlines() if line)}


def gpt2(folder):
    t = Tokenizer(models.BPE.from_file(str(folder / "gpt2-vocabulary.json"), str(folder / "gpt2-merges.txt")))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens(special("<|endoftext|>"))
    return t


def real_cases(case, folder):
    """folder: of vocabularies.py."""
    case("real_gpt2", lambda _: gpt2(folder))
    llama3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    case("real_llama3", lambda _: from_ranks(tiktoken_ranks(folder / "llama3.tiktoken"), LLAMA3, ignore_merges=True, specials=llama3))
    qwen = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    case("real_qwen", lambda _: from_ranks(tiktoken_ranks(folder / "qwen.tiktoken"), QWEN2, nfc=True, specials=qwen))
    tekken = json.loads((folder / "tekken.json").read_text())
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in tekken["vocab"][:130_072]}
    case("real_tekken", lambda _: from_ranks(ranks, tekken["config"]["pattern"], specials=("<s>", "</s>", "[INST]")))
    case("real_deepseek", lambda _: Tokenizer.from_file(str(folder / "deepseek.json")))


def live(args):
    work = pathlib.Path(args.work or tempfile.mkdtemp(prefix="cotune-tokenizer-"))
    cases = work / "cases"
    shutil.rmtree(cases, ignore_errors=True)
    cases.mkdir(parents=True)
    all_texts = texts(8) + texts_of_this_machine(400_000)
    write_texts(cases / "texts.bin", all_texts)
    print(f"{len(all_texts)} texts, {sum(map(len, all_texts)) / 1e6:.2f} MB", flush=True)

    def case(name, make):
        folder = cases / name
        folder.mkdir()
        tokenizer = make(folder)
        if not (folder / "gguf_vocabulary.json").exists():
            tokenizer.save(str(folder / "tokenizer.json"))
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        write_expected(folder, tokenizer, all_texts, "all", 300)
        print(f"{name}: {tokenizer.get_vocab_size()} tokens", flush=True)

    for kind in ("gpt2", "llama3", "qwen2", "smollm", "llama2"):
        case(kind, lambda folder: Tokenizer.from_file(str(COMMITTED / kind / "tokenizer.json")))
    case("gguf_llama", gguf_llama_case)
    if args.smollm:
        case("smollm2_gguf", lambda folder: smollm_case(args.smollm, folder))
    if args.vocabularies:
        real_cases(case, pathlib.Path(args.vocabularies))
    for i, path in enumerate(args.tokenizer):
        case(f"file{i}_{pathlib.Path(path).stem}", lambda folder: Tokenizer.from_file(path))
    done = subprocess.run([args.test, "--gtest_filter=TokenizerReference.*Live*"],
                          env={**os.environ, "COTUNE_TOKENIZER_CASES": str(cases)})
    if not args.work:
        shutil.rmtree(work)
    return done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--live", action="store_true")
    for name in ("--test", "--smollm", "--vocabularies", "--work"):
        parser.add_argument(name)
    parser.add_argument("--tokenizer", action="append", default=[])
    args = parser.parse_args()
    if args.write:
        write_committed()
    if args.live:
        if not args.test:
            parser.error("--live needs --test PROGRAM")
        sys.exit(live(args))
    if not args.write:
        parser.error("--write or --live")


main()
