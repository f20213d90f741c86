import subprocess
import sys

import pytest

import draftconv.checkpoint


def test_import_is_light() -> None:
    code = (
        "import sys, draftconv.checkpoint;"
        "print(sorted({'numpy', 'torch', 'huggingface_hub', 'safetensors', 'hashlib', 'zipfile', 'pickle',"
        "'concurrent.futures', 'ctypes', 'urllib.request'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    for name in draftconv.checkpoint.__all__:
        assert getattr(draftconv.checkpoint, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = draftconv.checkpoint.nonsense  # type: ignore[attr-defined]
