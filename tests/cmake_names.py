"""The names that CMake files give to programs and tests, read from the files alone."""
import re

LOOP = re.compile(r"\bforeach\((\w+)\s+([^()]*)\)|\bendforeach\(\)")


def given_names(text, command):
    """The first word behind every `command(`, once for each turn of the foreach loops around it; without what only CMake knows."""
    names = set()
    for match in re.finditer(rf"\b{command}([^\s)]+)", text):
        loops = []
        for loop in LOOP.finditer(text, 0, match.start()):
            if loop[1]:
                loops.append((loop[1], loop[2].split()))
            else:
                loops.pop()
        spelled = {match[1]}
        for variable, values in loops:
            spelled = {name.replace(f"${{{variable}}}", value) for name in spelled for value in values}
        names |= {name for name in spelled if "$" not in name}
    return names


def programs(root):
    texts = [file.read_text(encoding="utf-8") for folder in ("src", "bench", "tests") for file in (root / folder).rglob("CMakeLists.txt")]
    return {name for text in texts for name in given_names(text, r"add_executable\(")} | {f"test_{name}" for name in program_tests(root)}


def program_tests(root):
    return given_names((root / "tests/CMakeLists.txt").read_text(encoding="utf-8"), r"cotune_tests\(")


def tests(root):
    """As ctest knows them, but for those that depend on what the machine has."""
    return program_tests(root) | given_names((root / "tests/CMakeLists.txt").read_text(encoding="utf-8"), r"add_test\(NAME ")
