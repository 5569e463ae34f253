"""Remove secrets from the command line, the labels and the environment that a run stores."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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

# Options by which programs take a secret although their names do not say so. WHOLE: the next word is secret, or the
# rest of the same word. GLUED: only the rest of the same word (`mysql -p db` asks for the password of the database db).
# PLAIN: the next word is no secret, and no program either. NAMED: the next word is a name, and its value follows. Any
# other text separates a user, which stays, from the secret. `docker login` are the options of that subcommand.
WHOLE, GLUED, PLAIN, NAMED = "whole", "glued", "plain", "named"
_LDAP = ("ldapsearch", "ldapmodify", "ldapadd", "ldapdelete", "ldapcompare", "ldapwhoami", "ldappasswd")
_LOGINS = ("docker login", "podman login", "nerdctl login", "buildah login", "skopeo login", "helm login",
           "oras login", "crane login", "az login", "oc login", "twine upload", "poetry publish", "cqlsh", "yt-dlp",
           "rdesktop")
_MONGO = ("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport")
_MYSQL = ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mysqlcheck", "mysqlslap", "mariadb",
          "mariadb-dump", "mariadb-admin", "mycli")
_FREEIPMI = ("ipmi-sensors", "ipmi-dcmi", "ipmi-raw", "ipmi-oem", "ipmi-chassis", "ipmi-sel", "ipmipower", "bmc-info")
_SNMP = ("snmpget", "snmpgetnext", "snmpwalk", "snmpbulkget", "snmpbulkwalk", "snmpset", "snmptable", "snmpstatus")
_TABLE: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (("curl",), {"-u": ":", "--user": ":", "-U": ":", "--proxy-user": ":", "-E": ":", "--cert": ":", "-b": WHOLE}),
    (("http", "https", "xh"), {"-a": WHOLE, "-A": PLAIN}),
    (("ab",), {"-A": ":", "-P": ":"}),
    (("hey", "oha"), {"-a": ":"}),
    (("lftp",), {"-u": ","}),
    (("smbclient", "rpcclient"), {"-U": "%", "--user": "%"}),
    (("sshpass",), {"-p": WHOLE, "-vp": WHOLE, "-P": PLAIN, "-f": PLAIN, "-d": PLAIN}),
    (("plink", "pscp", "psftp"), {"-pw": WHOLE}),
    (("xfreerdp",), {"/p:": GLUED}),
    (_LOGINS, {"-p": WHOLE}),
    (("wandb login",), {"--host": PLAIN}),
    (("vault login",), dict.fromkeys(("-method", "-path", "-field", "-format", "-address", "-namespace"), PLAIN)),
    (("uv publish",), {"-p": WHOLE, "-t": WHOLE}),
    (("glab login",), {"-t": WHOLE}),
    (("gh secret",), {"-b": WHOLE, "--body": WHOLE}),
    (("kubectl secret", "oc secret"), {"--from-literal": "="}),
    (("aws put-parameter", "az secret"), {"--value": WHOLE}),
    (("mpirun", "mpiexec", "mpiexec.hydra"), {"-genv": NAMED, "-env": NAMED}),
    (("sqlplus", "htpasswd", "wpa_passphrase", "mc alias", "mc host"), {}),
    (_MYSQL, {"-p": GLUED}),
    (_MONGO, {"-p": WHOLE}),
    (("redis-cli",), {"-a": WHOLE}),
    (("sqlcmd", "bcp", "mosquitto_pub", "mosquitto_sub", "zip", "unzip"), {"-P": WHOLE}),
    (_LDAP, {"-w": WHOLE}),
    (("7z", "7za", "7zz"), {"-p": GLUED}),
    (("rar", "unrar"), {"-p": GLUED, "-hp": GLUED}),
    (("keytool", "jarsigner"), {"-storepass": WHOLE, "-keypass": WHOLE}),
    (("openssl",), {"-passin": WHOLE, "-passout": WHOLE}),
    (("openssl enc",), {"-passin": WHOLE, "-passout": WHOLE, "-k": WHOLE, "-K": WHOLE}),
    (("ipmitool",), {"-P": WHOLE, "-k": WHOLE, "-y": WHOLE}),
    (_FREEIPMI, {"-p": WHOLE, "-k": WHOLE}),
    (_SNMP, {"-c": WHOLE, "-A": WHOLE, "-X": WHOLE}),
)
# fmt: on
SECRET_OPTIONS: Final = {program: options for programs, options in _TABLE for program in programs}
_PROGRAMS = {key.partition(" ")[0] for key in SECRET_OPTIONS}
# Such a word later in a command is hardly a program.
_ONLY_FIRST = {"http", "https", "zip", "rar", "bcp", "ab", "hey", "mc"}
_STARTERS = {"sshpass"}  # the first word that is not an option is another program, with options of its own
# Any word that is not an option is the secret, or stands beside it.
_SECRET_WORDS = {"wandb login", "vault login", "sqlplus", "htpasswd", "wpa_passphrase", "mc alias", "mc host"}
# Programs that store a secret by name: `aws configure set aws_secret_access_key X`.
_STORING = {"aws", "git", "pip", "pip3", "dvc", "npm", "yarn", "conda", "gcloud", "poetry", "nmcli", "kubectl"}
_STORING |= {"rclone", "vastai", "ngrok"}
_STORE_WORDS = {"set", "config", "configure", "modify", "add", "connect", "authtoken"}

# Words that name a secret, also where no mark separates them from the word before: dbpassword, authtoken, requirepass.
# Only known words may precede `pass`, `token` and `key`: lowpass, --sort-key and --image_key are none.
_WORDS = (
    r"(?:[a-z0-9]*(?:password|passwd|passphrase|secret)s?|(?:require|user|db|root|admin|master|store|key|ssh)?pass|passcode|pwd"
    r"|(?:api|auth|access|bearer|bot|hf|refresh|session|user)?tokens?|credentials?|creds?|cookie|bearer|auth(?:orization|entication)?"
    r"|jwt|(?:api|wandb|access|account|secret|private|encryption|signing|license|ssh|service|subscription|auth|pass|master|storage"
    r"|openai|anthropic|azure|aws|google|gemini|mistral|cohere|groq|hf|huggingface|kaggle|comet|github|gitlab|ngc)[-_.]?keys?)\d*"
)
_LAST_WORDS = r"(?:(?:root|user|admin|db|my)?pw\d*|(?<=[-_.])pat)"  # names of secrets only at the end: not --pw-conv
# Parts of names that are about tokens of a text. They excuse nothing else in the name: TOKENIZER_API_KEY is a secret.
_TEXT_TOKENS = re.compile(
    r"(?:^|[-_.])(?:"
    r"(?:(?:max|min|num|n|new|total|per|skip|add|prompt|batch|batched|seq|input|output|completion|generated?|prefill|decode|cached"
    r"|special|stop|image|pad)[-_.])+tokens"
    r"|(?:pad|eos|bos|unk|sep|cls|class|mask|special|stop|start|end|image)[-_.]tokens?"
    r"|tokens?[-_.](?:per|count|limit|len|length|ids?|dropout|budget|size|type|file|dim|embeddings?|mixer|rate)"
    r")(?=[-_.]|$)",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PROPERTY = re.compile(r"-D(?=[A-Za-z])")  # java -Dpassword=X
_PLACE = r"(?:file|path|dir|stdin|env|type|method|mode|helper)$"  # --password-stdin, --auth-type: no secret follows
_SECRET_NAME = re.compile(rf"(?:^|[-_.])(?:{_WORDS}(?:$|[-_.](?!{_PLACE}))|{_LAST_WORDS}$)", re.IGNORECASE)
# PGPASSWORD, DBPASS, MYTOKEN, OPENAI_KEY: variables that programs read secrets from have no mark between words.
_VARIABLE = re.compile(
    r"[A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|(?<!BY)(?<!COM)PASS|SECRET|TOKEN)\d*|(?:[A-Z0-9]+_)*(?<!PUBLIC_)KEY"
)
_COUNT_NAME = re.compile(
    r"(?:^|[-_.])(?:tokens|(?:max|min|num|n|new|total|per|prompt|batch|seq|input|output)[-_.]token)$", re.IGNORECASE
)
_COUNT = re.compile(r"\d[\d.,_]{0,17}(?:[eE]\+?\d{1,2})?[kKmMbBtT]?")  # --tokens 4096, 1_000_000_000, 2.5e9, 300B
# No secret, whatever its name: --use-auth-token true, -pass 1 (of two), --pass-rate 0.3.
_NO_SECRET = re.compile(r"true|false|yes|no|none|null|auto|\d|\d?\.\d{1,3}", re.IGNORECASE)
_HASH_NAME = re.compile(
    r"(?:^|[-_.])(?:commit|rev|revision|sha(?:1|256|512)?|hash|digest|checksum|md5|ref|branch|tag|seed|uuid)$",
    re.IGNORECASE,
)
_KEY_VALUE = re.compile(r"(?P<key>-{0,2}[A-Za-z_][\w.\-]*)(?P<sep>=|:=?\s*)(?P<value>.+)", re.DOTALL)
# Names inside a text, and what follows them: `name=value`, `"name": "value"`, `--name value`.
_INLINE = re.compile(r"(?<![\w.\-])[\w.\-]+\\?[\"']?\]?\s*[=:]\s*")
_INLINE_VALUE = re.compile(
    r"\\\"(?:[^\"\\]|\\\\)*\\?\"|\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|[^\s&;,\"'}]+", re.DOTALL
)
_INLINE_FLAG = re.compile(r"(?<!\S)--?[\w.\-]+\s+")
_FLAG_VALUE = re.compile(r"\"(?:\\.|[^\"\\])*\"?|'[^']*'?|(?!--)[^\s\"']+", re.DOTALL)
_URL = re.compile(
    r"(?P<scheme>(?<![A-Za-z+.\-])[A-Za-z][\w+.\-]{0,40}://)"
    r"(?:[^/\s\"']+|[^/\s\"'@:]*:(?!\d+/)[^\s\"'@]{1,256})@"  # the second: a password that contains "/"
)
_QUERY = re.compile(r"(?P<key>[?&](?:key|sig|signature|code)=)[^\s&#\"']+", re.IGNORECASE)
# A text that a shell passes to a program which reads a secret: `echo X | docker login --password-stdin`.
_PIPED = re.compile(
    r"(?P<echo>\b(?:echo|printf)\s+)[^|;&\n]{1,1000}(?=\|[^|;&\n]*(?:-stdin\b|--with-token\b|passwd\b|\bsudo\s+-S))"
)
_HEADER = re.compile(r"(?P<kind>\b(?:Bearer|Basic)\s+)[\w.~+/\-]+=*", re.IGNORECASE)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-(?=[\w\-]*\d)[A-Za-z0-9_\-]{8,}|sk_(?:live|test)_\w{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w\-]{8,}"
    r"|xox[abprs]-[\w\-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w\-]{20,}|ya29\.[\w\-]+|pypi-[\w\-]{16,}|npm_[A-Za-z0-9]{16,}|nvapi-[\w\-]{8,}"
    r"|r8_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|wandb_v\d_\w{8,}|eyJ[\w\-]{8,}\.[\w\-]{4,}\.[\w\-]*"
    r"|hvs\.[\w\-]{8,}|dckr_pat_[\w\-]{8,}|glsa_\w{8,}|SG\.[\w\-]{8,}\.[\w\-]{8,}|tskey-[\w\-]{8,}|AGE-SECRET-KEY-\w{8,})"
)
_LONG = re.compile(r"(?<!sha256:)(?<![A-Za-z0-9+_\-])[A-Za-z0-9+_\-]{32,}={0,2}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# A word of a shell script with its quotes, the end of a command, or a redirection.
_SHELL_WORD = re.compile(r"(?:\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s;|&()<>\"'\\])+|[;|&()\n]+|[<>]+", re.DOTALL)
_SPACE = re.compile(r"\s")
_QUOTES = re.compile(r"\\(.)|[\"']", re.DOTALL)


def redact_command(argv: Iterable[str]) -> list[str]:
    """Return a command line with the values of secrets replaced by `***`."""
    words = list(argv)
    marked = _find_option_secrets(words)
    result: list[str] = []
    option = ""  # the option before, whose value this word may be
    for number, word in enumerate(words):
        if number in marked:
            result.append(clean_text(word[: marked[number]]) + HIDDEN)
            option = ""
        elif option and not word.startswith("--") and is_secret_value(option, word):
            result.append(HIDDEN)
            option = ""
        else:
            result.append(clean_text(_clean_script(word), option))
            option = word if word.startswith("-") and "=" not in word and not _SPACE.search(word) else ""
    return result


def redact_labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a run with the values of secrets replaced by `***`."""
    return {
        name: _redact_label(str(name), value) if isinstance(value, str) else value for name, value in labels.items()
    }


def _redact_label(name: str, value: str) -> str:
    return HIDDEN if is_secret_value(name, value) else clean_text(_clean_script(value), name)


def select_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the allow-list, without secrets in their values."""
    return {name: clean_text(environment[name]) for name in ENVIRONMENT if name in environment}


def is_secret_name(name: str) -> bool:
    """Return whether an option or variable of that name holds a secret."""
    bare = _TEXT_TOKENS.sub("", _CAMEL.sub("_", _PROPERTY.sub("", name, count=1).lstrip("-")))
    return bool(_SECRET_NAME.search(bare) or _VARIABLE.fullmatch(bare))


def is_secret_value(name: str, value: str) -> bool:
    """Return whether a value is a secret by its name; a number of tokens is none (`--tokens 4096`), nor is `true`."""
    is_plain = _NO_SECRET.fullmatch(value) or (_COUNT_NAME.search(name) and _COUNT.fullmatch(value))
    return is_secret_name(name) and not is_plain


def clean_text(text: str, name: str = "") -> str:
    """Return a text without the secrets that it shows; `name` is the option or label that the text is the value of."""
    text = _PEM.sub(HIDDEN, text)
    pair = _KEY_VALUE.fullmatch(text)
    if pair and is_secret_value(pair["key"], pair["value"]) and not pair["value"].startswith("//"):
        return f"{pair['key']}{pair['sep']}{HIDDEN}"
    text = _URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _HEADER.sub(rf"\g<kind>{HIDDEN}", text)
    text = _QUERY.sub(rf"\g<key>{HIDDEN}", text)
    text = _hide_values(text, _INLINE, _INLINE_VALUE)
    text = _hide_values(text, _INLINE_FLAG, _FLAG_VALUE)
    text = _KNOWN.sub(HIDDEN, text)
    if _HASH_NAME.search(pair["key"] if pair else name):
        return text
    return _LONG.sub(lambda m: HIDDEN if _looks_random(m[0]) else m[0], text)


def _hide_values(text: str, names: re.Pattern[str], values: re.Pattern[str]) -> str:
    """Hide the values that follow names of secrets; the value of another name may hold such a pair itself."""
    parts, done, at = [], 0, 0
    while found := names.search(text, at):
        at = found.end()
        name = found[0].rstrip("=: \t\n\r\"']\\")
        value = values.match(text, at) if is_secret_name(name) else None
        if value and is_secret_value(name, value[0]):
            parts += [text[done:at], HIDDEN]
            done = at = value.end()
    return "".join([*parts, text[done:]])


def _clean_script(text: str) -> str:
    """Hide the secrets of options in a text that a shell may run; a text of one word is no script."""
    if not _SPACE.search(text):
        return text
    text = _PIPED.sub(rf"\g<echo>{HIDDEN} ", text)
    matches = list(_SHELL_WORD.finditer(text))
    words = [_QUOTES.sub(r"\1", match[0]) for match in matches]
    for number, kept in reversed(_find_option_secrets(words).items()):
        begin, end = matches[number].span()
        text = f"{text[:begin]}{words[number][:kept]}{HIDDEN}{text[end:]}"
    return text


def _find_option_secrets(words: Sequence[str]) -> dict[int, int]:
    """Return the words that hold a secret by the options of their program, with the number of letters to keep."""
    found: dict[int, int] = {}
    program, kind, stores, is_first = "", "", False, True
    for number, word in enumerate(words):
        if kind == NAMED:
            kind = WHOLE if is_secret_name(word) else PLAIN
            continue
        if kind:
            if (kept := _count_kept(word, kind)) < len(word):
                found[number] = kept
            kind = ""
            continue
        if word and not word.strip(";|&()\n"):
            program, stores, is_first = "", False, True
            continue
        if word and not word.strip("<>"):
            kind = PLAIN  # the name of a file
            continue
        if not word.startswith("-") and "=" not in word:
            before = program
            program = _name_program(word, program, is_first=is_first)
            stores = stores or (program.partition(" ")[0] in _STORING and word in _STORE_WORDS)
            if stores and program == before and is_secret_name(word):
                kind = WHOLE
                continue
            if program == before and program in _SECRET_WORDS:
                found[number] = 0
                continue
            is_first = False
        kind, kept = _read_option(word, SECRET_OPTIONS.get(program, {}))
        if not kind and kept < len(word):
            found[number] = kept
    return found


def _name_program(word: str, program: str, *, is_first: bool) -> str:
    """Return the program, or its subcommand, whose options follow a word; an empty text if it takes no secrets."""
    name = word.rpartition("/")[2]
    if is_first or (name in _PROGRAMS and name not in _ONLY_FIRST):
        return name
    if (subcommand := f"{program.partition(' ')[0]} {name}") in SECRET_OPTIONS:
        return subcommand
    return name if name in _STORING or program in _STARTERS else program


def _read_option(word: str, options: Mapping[str, str]) -> tuple[str, int]:
    """Return the kind of secret that the next word is, or nothing and the letters of this word that are not secret."""
    for option, kind in options.items():
        if word == option and kind != GLUED:
            return kind, len(word)
        begin = f"{option}=" if option.startswith("--") else option
        if word.startswith(begin) and len(word) > len(begin) and (kind == GLUED or len(option) == 2 or begin != option):
            return "", len(begin) + _count_kept(word[len(begin) :], kind)
        # Several short options in one word: `curl -sSu user:secret`. What follows is hidden only if it is such a pair.
        if len(kind) == 1 and len(option) == 2 and re.match(rf"-[A-Za-z]+{re.escape(option[1])}", word):
            return (kind, len(word)) if word.endswith(option[1]) else ("", _count_kept(word, kind))
    return "", len(word)


def _count_kept(value: str, kind: str) -> int:
    """Return the number of letters before the secret; all of them if there is none."""
    if kind in (WHOLE, GLUED):
        return 0
    if kind == PLAIN:
        return len(value)
    user, separator, _ = value.partition(kind)
    return len(user) + 1 if separator and len(user) + 1 < len(value) else len(value)


def _looks_random(text: str) -> bool:
    # Long paths and names repeat letters; keys mix digits and both cases, or are long hexadecimal.
    if _UUID.search(text) or sum(c in "-_+" for c in text) > len(text) / 10:
        return False  # a name of many words: Llama2-13B-A100-bs64-lr3e-4
    digits = sum(c.isdigit() for c in text)
    letters = sum(c.isalpha() for c in text)
    if digits < 4 or letters < 4:
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in (text.count(c) for c in set(text)))
    mixed = any(c.islower() for c in text) and any(c.isupper() for c in text)
    hexadecimal = all(c in "0123456789abcdefABCDEF" for c in text)
    return (mixed and entropy > 4.0) or (hexadecimal and entropy > 3.0)
