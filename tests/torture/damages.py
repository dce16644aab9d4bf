"""Kinds of damage to a file: functions from its bytes to other bytes, or None to delete it."""


def flip_bit(data, rng):
    """Change one bit, as a failing disk does."""
    position = rng.randrange(len(data))
    return data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :]


def change_digit(data, rng):
    """Replace a digit by another, which most formats accept."""
    digits = [index for index, byte in enumerate(data) if 48 <= byte < 58]
    if not digits:
        return flip_bit(data, rng)
    position = rng.choice(digits)
    return data[:position] + bytes([48 + (data[position] - 47) % 10]) + data[position + 1 :]


def truncate(data, rng):
    """Lose the end, as after a full disk."""
    return data[: rng.randrange(len(data))]


def lose_lines(data, rng):
    """Lose the last lines, so that every line that is left is complete."""
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: rng.randrange(len(lines))])


def fill_with_zeros(data, rng):
    """Zero a part, as a file system does after a power failure."""
    start = rng.randrange(len(data))
    end = rng.randrange(start, len(data)) + 1
    return data[:start] + bytes(end - start) + data[end:]


DAMAGES = {
    "flip": flip_bit,
    "digit": change_digit,
    "truncate": truncate,
    "lines": lose_lines,
    "zeros": fill_with_zeros,
    "empty": lambda data, rng: b"",
    "brackets": lambda data, rng: b"[" * 100_000,
    "other": lambda data, rng: rng.choice([b"[]", b"{}", b"null", b"1", b"x: 1\n", b"\xff\xfe"]),
    "delete": lambda data, rng: None,
}
