"""Remove secrets from the command line and the environment that a run stores."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN = "***"

# Environment variables that explain a result. Everything else stays out: a list of what to hide is never complete.
# fmt: off
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "TF_ENABLE_ONEDNN_OPTS", "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "XLA_FLAGS", "TORCH_CUDNN_BENCHMARK",
    "PYTORCH_CUDA_ALLOC_CONF", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "WORLD_SIZE", "RANK",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
    "SLURM_STEP_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_NTASKS",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS",
    "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT", "CONDA_DEFAULT_ENV", "LANG",
    "TZ", "JOULELAB_POWERCAP", "JOULELAB_TWIN",
)
# fmt: on

_WORDS = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|credentials?|cookie|bearer|auth(?:orization|entication)?"
    r"|(?:api|wandb|access|account|secret|private|encryption|signing|license|ssh|service)[-_.]?keys?)"
)
# Words that make a name harmless although it contains a secret's word: --output-tokens 100, --tokenizer bert.
_HARMLESS = re.compile(
    r"(?:^|[-_.])(?:max|min|num|n|new|total|per|pad|eos|bos|unk|mask|special|skip|add|image|stop|prompt|batch|seq"
    r"|input|output|completion|generated?|prefill|decode|cached)"
    r"[-_.a-z0-9]*tokens?(?:[-_.]|$)|tokens?[-_.](?:per|count|limit|len|length|id|ids|dropout|budget|size|type|file)\b|tokeniz|author(?!iz)",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(rf"(?:^|[-_.]){_WORDS}(?:$|[-_.](?!file$|path$|dir$))", re.IGNORECASE)
# PGPASSWORD, DBPASS, MYTOKEN: variables that programs read secrets from have no mark between words.
_VARIABLE = re.compile(r"[A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|(?<!BY)(?<!COM)PASS|SECRET|TOKEN)")
_KEY_VALUE = re.compile(r"(?P<key>-{0,2}[A-Za-z_][\w.\-]*)(?P<sep>=|:=?\s*)(?P<value>.+)", re.DOTALL)
_INLINE = re.compile(
    rf"(?P<key>(?<![\w.\-])[\w.\-]*{_WORDS}[\w.\-]*[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s&;,\"'}}]+)",
    re.IGNORECASE,
)
_INLINE_FLAG = re.compile(r"(?P<key>(?<!\S)--?[\w.\-]+\s+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"']+)")
_URL = re.compile(r"(?P<scheme>(?<![A-Za-z+.\-])[A-Za-z][\w+.\-]*://)[^/\s@\"']+@")
_HEADER = re.compile(r"(?P<kind>\b(?:Bearer|Basic)\s+)[\w.~+/\-]+=*", re.IGNORECASE)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_\-]{8,}|sk_(?:live|test)_\w{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w\-]{8,}"
    r"|xox[abprs]-[\w\-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w\-]{20,}|ya29\.[\w\-]+|pypi-[\w\-]{16,}|npm_[A-Za-z0-9]{16,}|nvapi-[\w\-]{8,}"
    r"|r8_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|wandb_v\d_\w{8,}|eyJ[\w\-]{8,}\.[\w\-]{4,}\.[\w\-]*)"
)
_LONG = re.compile(r"[A-Za-z0-9+_\-]{32,}={0,2}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def redact_command(argv: Iterable[str]) -> list[str]:
    """Return a command line with the values of secrets replaced by `***`."""
    result: list[str] = []
    hide_next = False
    for argument in argv:
        if hide_next and not argument.startswith("--"):
            result.append(HIDDEN)
            hide_next = False
            continue
        result.append(_clean_text(argument))
        hide_next = _is_flag(argument)
    return result


def select_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the allow-list, without secrets in their values."""
    return {name: _clean_text(environment[name]) for name in ENVIRONMENT if name in environment}


def is_secret_name(name: str) -> bool:
    """Return whether an option or variable of that name holds a secret."""
    bare = _CAMEL.sub("_", name.lstrip("-"))
    return bool(_SECRET_NAME.search(bare) or _VARIABLE.fullmatch(name)) and not _HARMLESS.search(bare)


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and "=" not in argument and " " not in argument and is_secret_name(argument)


def _clean_text(text: str) -> str:
    text = _PEM.sub(HIDDEN, text)
    pair = _KEY_VALUE.fullmatch(text)
    if pair and " " not in pair["key"] and is_secret_name(pair["key"]) and not pair["value"].startswith("//"):
        return f"{pair['key']}{pair['sep']}{HIDDEN}"
    text = _URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _HEADER.sub(rf"\g<kind>{HIDDEN}", text)
    text = _INLINE.sub(_hide_inline, text)
    text = _INLINE_FLAG.sub(lambda m: m["key"] + HIDDEN if is_secret_name(m["key"].strip()) else m[0], text)
    text = _KNOWN.sub(HIDDEN, text)
    return _LONG.sub(lambda m: HIDDEN if _looks_random(m[0]) else m[0], text)


def _hide_inline(match: re.Match[str]) -> str:
    name = match["key"].rstrip("=: \t\"'")
    return match["key"] + HIDDEN if is_secret_name(name) else match[0]


def _looks_random(text: str) -> bool:
    # Long paths and names repeat letters and words; keys mix digits and both cases, or are long hexadecimal.
    if _UUID.search(text):
        return False
    digits = sum(c.isdigit() for c in text)
    letters = sum(c.isalpha() for c in text)
    if digits < 4 or letters < 4:
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in (text.count(c) for c in set(text)))
    mixed = any(c.islower() for c in text) and any(c.isupper() for c in text)
    hexadecimal = all(c in "0123456789abcdefABCDEF" for c in text)
    return (mixed and entropy > 4.0) or (hexadecimal and entropy > 3.0)
