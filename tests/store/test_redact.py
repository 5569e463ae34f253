from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.store.redact import HIDDEN, redact_command, redact_labels, select_environment

SECRET = "Tr0ub4dor-and-3"
SECRETS = [
    ["run", "--token", SECRET],
    ["run", "--hf-token", SECRET],
    ["run", "--password", SECRET],
    ["run", "--db_password", SECRET],
    ["run", "--api-key", SECRET],
    ["run", "--apikey", SECRET],
    ["run", "--apiKey", SECRET],
    ["run", "--openai.api_key", SECRET],
    ["run", "--secret", SECRET],
    ["run", "-password", SECRET],
    ["run", f"--token={SECRET}"],
    ["run", f"--wandb-api-key={SECRET}"],
    ["run", f"--wandb_key={SECRET}"],
    ["env", f"HF_TOKEN={SECRET}", "python"],
    ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "python"],
    ["env", f"PG_PASSWORD={SECRET}"],
    ["env", f"PGPASSWORD={SECRET}", "psql"],
    ["sh", "-c", f"PGPASSWORD={SECRET} psql"],
    ["env", f"DBPASS={SECRET}", f"MYTOKEN={SECRET}"],
    ["hydra", f"model.auth_token={SECRET}"],
    ["git", "clone", f"https://user:{SECRET}@example.org/repo.git"],
    ["git", "clone", f"https://{SECRET}@example.org/repo.git"],
    ["curl", "-H", f"Authorization: Bearer {SECRET}"],
    ["curl", f"https://example.org/?access_token={SECRET}&x=1"],
    ["sh", "-c", f"export API_KEY={SECRET}; python train.py"],
    ["sh", "-c", f"train --password '{SECRET} with spaces' --lr 1"],
    ["sh", "-c", f"train --token {SECRET} --lr 1"],
    ["python", "-c", f'login(token="{SECRET}")'],
    ["run", '{"password": "' + SECRET + '", "lr": 1}'],
    ["curl", "-u", f"user:{SECRET}", "https://example.org"],
    ["/usr/bin/curl", f"-uuser:{SECRET}"],
    ["curl", "-sSu", f"user:{SECRET}"],
    ["curl", f"--user=user:{SECRET}"],
    ["curl", "--proxy-user", f"user:{SECRET}"],
    ["curl", "-b", f"session={SECRET}"],
    ["curl", "-H", f"X-Api-Key: {SECRET}"],
    ["http", "-a", f"me:{SECRET}", "example.org"],
    ["wget", f"--http-password={SECRET}"],
    ["mysql", "-u", "me", f"-p{SECRET}", "db"],
    ["sudo", "-u", "bob", "mysqldump", f"-p{SECRET}", "db"],
    ["sshpass", "-p", SECRET, "ssh", "-p", "22", "host"],
    ["sshpass", f"-p{SECRET}", "ssh", "host"],
    ["sshpass", "-P", "assphrase", "-p", SECRET, "ssh", "host"],
    ["sshpass", "-vp", SECRET, "ssh", "host"],
    ["keytool", "-storepass", SECRET],
    ["run", "--jwt", SECRET],
    ["python", "-c", f'os.environ["HF_TOKEN"] = "{SECRET}"'],
    ["curl", f"ftp://user:p@{SECRET}@example.org/"],
    ["redis-cli", "-a", SECRET, "ping"],
    ["mongosh", "-u", "me", "-p", SECRET],
    ["docker", "login", "-u", "me", "-p", SECRET, "registry"],
    ["helm", "registry", "login", "-p", SECRET],
    ["docker", "login", "-p", SECRET],
    ["huggingface-cli", "login", "--token", SECRET],
    ["wandb", "login", SECRET],
    ["python", "-m", "wandb", "login", "--relogin", "--host", "https://wandb.example.org", SECRET],
    ["vault", "login", SECRET],
    ["vault", "login", "-method", "userpass", "username=me", f"password={SECRET}"],
    ["sh", "-c", f"wandb login {SECRET} && python train.py"],
    ["ipmitool", "-U", "admin", "-P", SECRET, "dcmi", "power", "reading"],
    ["ipmi-dcmi", "-p", SECRET],
    ["snmpwalk", "-v2c", "-c", SECRET, "pdu1"],
    ["snmpget", "-v3", "-A", SECRET, "-X", SECRET, "pdu1"],
    ["mosquitto_sub", "-p", "1883", "-P", SECRET],
    ["ldapsearch", "-D", "cn=me", "-w", SECRET],
    ["smbclient", "-U", f"me%{SECRET}", "//server/share"],
    ["lftp", "-u", f"me,{SECRET}", "example.org"],
    ["zip", "-P", SECRET, "a.zip", "b"],
    ["7z", "a", f"-p{SECRET}", "a.7z"],
    ["openssl", "enc", "-aes256", "-k", SECRET],
    ["openssl", "pkcs12", "-passin", f"pass:{SECRET}"],
    ["aws", "configure", "set", "aws_secret_access_key", SECRET],
    ["git", "config", "remote.token", SECRET],
    ["env", f"OPENAI_KEY={SECRET}", "python"],
    ["timeout", "10", "curl", "-u", f"user:{SECRET}"],
    ["sh", "-c", f"echo x && curl -su 'user:{SECRET}' https://example.org | tee log"],
    ["sh", "-c", f'mysql -p"{SECRET}" db'],
    ["sh", "-c", f"sshpass -p {SECRET} ssh -p 22 host nvidia-smi"],
    ["bash", "-c", f"export OPENAI_KEY={SECRET}; python -u train.py"],
    ["joulelab", "serving", "load", "--label", f"token={SECRET}", "--header", f"authorization=Bearer {SECRET}"],
    # names that contain a word about tokens of a text, or begin like one
    *(
        ["env", f"{name}={SECRET}", "x"]
        for name in (
            "NPM_TOKEN",
            "NEPTUNE_API_TOKEN",
            "NETLIFY_AUTH_TOKEN",
            "NOTION_TOKEN",
            "NVIDIA_API_TOKEN",
            "MINIO_TOKEN",
            "INPUT_GITHUB_TOKEN",
            "SEQERA_ACCESS_TOKEN",
            "NEW_TOKEN",
            "MAX_TOKEN",
            "AUTHOR_SECRET",
            "COAUTHOR_PASSWORD",
            "TOKENIZER_API_KEY",
            "AUTHOR_TOKEN",
            "MAX_TOKENS_SECRET",
            "TOKEN_TYPE_PASSWORD",
        )
    ),
    ["docker", "run", "-e", f"NPM_TOKEN={SECRET}"],
    ["docker", "build", f"--build-arg=NPM_TOKEN={SECRET}"],
    ["bash", "-c", f"export NGC_TOKEN={SECRET}; true"],
    ["jupyter", "lab", f"--NotebookApp.token={SECRET}"],
    # other names
    *(
        ["run", f"--{name}", SECRET]
        for name in (
            "authkey",
            "authtoken",
            "apitoken",
            "requirepass",
            "dbpassword",
            "userpass",
            "pw",
            "rootpw",
            "openai_key",
            "passkey",
            "token-type-secret",
        )
    ),
    *(["env", f"{name}={SECRET}"] for name in ("DB_PW", "PASSWORD2", "PGPASSWORD2", "GITHUB_PAT", "CREDS")),
    ["java", f"-Dpassword={SECRET}", "-jar", "a"],
    *(["curl", f"https://example.org/?a=1&{name}={SECRET}&b=2"] for name in ("key", "sig", "pw")),
    ["helm", "upgrade", "--set", f"adminPw={SECRET}"],
    # scripts, texts and addresses
    ["bash", "-c", f"mysql\t-p{SECRET}"],
    ["bash", "-c", f"mysql<dump.sql -p{SECRET} db"],
    ["bash", "-c", f"train --verbose --token {SECRET}"],
    ["bash", "-c", f"echo {SECRET} | docker login --password-stdin"],
    ["bash", "-c", f"printf '%s' '{SECRET}' | sudo -S reboot"],
    ["curl", f"-sSuuser:{SECRET}"],
    ["curl", "-d", '{"password":"ab\\"' + SECRET + '"}'],
    ["bash", "-c", 'curl -d "{\\"password\\":\\"' + SECRET + '\\"}"'],
    ["git", "clone", f"https://user:p/{SECRET}@example.org/x.git"],
    ["run", f"path=token={SECRET}"],
    # options of programs
    ["gh", "secret", "set", "NAME", "--body", SECRET],
    ["gh", "secret", "set", "NAME", f"-b{SECRET}"],
    ["glab", "auth", "login", "-t", SECRET],
    ["oc", "login", "-u", "me", "-p", SECRET, "host"],
    ["kubectl", "create", "secret", "generic", "x", f"--from-literal=foo={SECRET}"],
    ["kubectl", "create", "secret", "generic", "x", "--from-literal", f"foo={SECRET}"],
    ["aws", "ssm", "put-parameter", "--name", "/db", "--value", SECRET, "--type", "SecureString"],
    ["az", "keyvault", "secret", "set", "--name", "x", "--value", SECRET],
    ["mpirun", "-genv", "OMP_NUM_THREADS", "4", "-genv", "HF_TOKEN", SECRET, "python", "train.py"],
    ["ngrok", "authtoken", SECRET],
    ["ngrok", "config", "add-authtoken", SECRET],
    ["vastai", "set", "api-key", SECRET],
    ["rclone", "config", "create", "r", "s3", "secret_access_key", SECRET],
    ["mc", "alias", "set", "m", "http://host", "access", SECRET],
    ["http", "-A", "bearer", "-a", SECRET, "example.org"],
    ["ab", "-A", f"me:{SECRET}", "http://host/"],
    ["hey", "-a", f"me:{SECRET}", "http://host/"],
    ["htpasswd", "-b", "file", "me", SECRET],
    ["sqlplus", f"me/{SECRET}@db"],
]
TOKENS = [
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ123456",
    "sk-" + "proj-abcdefghijklmnop1234",
    "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "glpat-" + "abcdefghij1234567890",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "xoxb-" + "123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0.abcdef",
    "0123456789abcdef" + "fedcba98765432100a1b2c3d",
    "aB3dE5gH7jK9mN1pQ3" + "sT5vW7yZ9bC1dE3fG",
]


@every_row("argv", SECRETS)
def test_values_of_secrets_go(argv: list[str]) -> None:
    cleaned = redact_command(argv)
    assert SECRET not in " ".join(cleaned)
    assert HIDDEN in " ".join(cleaned)
    assert len(cleaned) == len(argv)


@every_row("token", TOKENS)
def test_known_and_random_tokens_go_wherever_they_stand(token: str) -> None:
    for argv in ([token], ["--x", token], [f"--x={token}"], ["sh", "-c", f"do {token} now"], [f"a:{token}"]):
        assert token not in " ".join(redact_command(argv))


HARMLESS = [
    ["python", "train.py", "--tokens", "1_000_000_000", "--data.tokens=2.5e9"],
    ["python", "train.py", "--cls-token", "[CLS]", "--token-dim", "512", "--use-auth-token", "true"],
    ["ffmpeg", "-pass", "1"],
    ["python", "eval.py", "--pass-rate", "0.3", "--pass_at_k=5"],
    ["sshpass", "-f", "secret.txt", "ssh", "-p", "22", "host"],
    ["python", "train.py", "--lr", "3e-4", "--batch-size=64", "--epochs", "10"],
    ["train", "--max-tokens", "512", "--max_new_tokens=128", "--tokenizer", "bert-base", "--num-tokens", "5"],
    ["joulelab", "serving", "load", "--prompt-tokens", "200", "--output-tokens", "100"],
    ["env", "COMPASS=north", "BYPASS=1", "MAX_TOKEN=5", "COMPASSES=2"],
    ["train", "--tokenizer-path", "/data/tok", "--author", "me", "--authors=you", "--bypass", "yes"],
    ["train", "--token-file", "/run/secrets/hf", "--tokens-per-batch=4096", "--pad-token-id", "0"],
    ["run", "/home/me/projects/a-very-long-directory-name-that-goes-on/and-on/train_model_final_v2.py"],
    ["run", "--device", "GPU-8f3c2a11-0b1c-4d5e-9f60-123456789abc", "--model", "meta-llama/Llama-2-13b-hf"],
    ["run", "--out=/scratch/results/20240101-120000-ab12/checkpoints/epoch-10-step-120000"],
    ["http", "GET", "https://example.org:8080/path?x=1", "host:port", "key=value", "monkey=1", "--passes", "3"],
    ["sleep", "1"],
    ["train", "--output-tokens", "128", "--max-tokens", "512", "--tokens", "4096", "--tokens=1.5M"],
    ["python", "-u", "train.py", "-p", "8080", "-P", "4", "-a", "x", "-w", "8", "-k", "3", "-c", "config.toml"],
    ["mkdir", "-p", "x/y"],
    ["ssh", "-p", "22", "host", "nvidia-smi", "-u"],
    ["sshpass", "-e", "ssh", "-p", "22", "host"],
    ["docker", "run", "-p", "8080:80", "-u", "1000:1000", "image", "login"],
    ["mysql", "-p", "database", "-P", "3306"],
    ["curl", "-u", "user", "-p", "-sS", "https://example.org:8080/"],
    ["redis-cli", "-p", "6379"],
    ["mosquitto_sub", "-p", "1883", "-t", "power"],
    ["ipmitool", "-p", "623", "-U", "admin"],
    ["psql", "-p", "5432", "-U", "me"],
    ["rsync", "-a", "src/", "dst/"],
    ["wandb", "login", "--relogin", "--host", "https://wandb.example.org"],
    ["python", "train.py", "--logger", "wandb", "login.py"],
    ["vault", "login", "-method", "oidc", "role=dev"],
    ["vault", "kv", "get", "data"],
    ["python", "x.py", "--format", "zip", "-P", "4", "--auth-type", "basic", "--password-stdin", "registry"],
    ["git", "log", "--grep", "password"],
    ["train", "--run-name", "Llama2-13B-A100-bs64-lr3e-4-fp16-Seed1234"],
    [
        "train",
        "--revision",
        "0123456789abcdeffedcba98765432100a1b2c3d",
        "--commit=0123456789abcdeffedcba98765432100a1b2c3d",
    ],
    ["docker", "run", "image@sha256:0123456789abcdeffedcba98765432100a1b2c3d0123456789abcdef01234567"],
    ["sh", "-c", "curl -sS https://example.org | python -u train.py -p 8080; mkdir -p x"],
    ["run", "--max-new-tokens", "128", "--tokenizer", "gpt2", "--pad_token_id", "0", "--num-tokens=5", "author=me"],
    ["run", "--maxNewTokens", "128", "--stop-tokens", "</s>,<eos>", "--pad_token=<pad>", "--image-token", "<image>"],
    ["vllm", "--max-num-batched-tokens", "8192", "--num_speculative_tokens=5", "--add_special_tokens", "false"],
    ["env", "MAX_TOKENS=512", "MAX_TOKEN=512", "N_TOKENS=1e9", "TOKENIZERS_PARALLELISM=false", "TOKENIZER=gpt2"],
    ["sh", "-c", "train --max-tokens $N --use-token --lr 1 < in.txt > out.txt; echo done | tee log"],
    ["run", "--lowpass", "8000", "--sort-key", "name", "--image_key", "jpg", "--pw-conv", "64", "--path", "x/pat.txt"],
    ["pip", "install", "git+https://github.com/org/repo@v1.2", "https://host:8080/pkg@1.2.3"],
    ["mpirun", "-genv", "OMP_NUM_THREADS", "4", "-x", "HF_TOKEN", "python", "train.py"],
    ["kubectl", "create", "configmap", "x", "--from-literal=lr=0.1"],
    ["gh", "pr", "create", "--body", "text"],
    ["sh", "-c", "grep ab -A 3 log"],
]


@every_row("argv", HARMLESS)
def test_the_rest_stays(argv: list[str]) -> None:
    assert redact_command(argv) == argv


def test_only_the_value_is_hidden() -> None:
    assert redact_command(["git", "clone", "https://me:pw@example.org/r.git"])[2] == "https://***@example.org/r.git"
    assert redact_command(["--token", "x", "--lr", "1"]) == ["--token", "***", "--lr", "1"]
    assert redact_command(["--use-token", "--lr", "1"]) == ["--use-token", "--lr", "1"]
    assert redact_command(["curl", "-u", "me:pw", "-uyou:pw"]) == ["curl", "-u", "me:***", "-uyou:***"]
    assert redact_command(["mysql", "-ppw", "db"]) == ["mysql", "-p***", "db"]
    assert redact_command(["sh", "-c", "cd x; sshpass -p 'p w' ssh -p 22 h"])[2] == "cd x; sshpass -p *** ssh -p 22 h"


def test_labels_hold_no_secrets() -> None:
    given = {"token": SECRET, "api_key": SECRET, "url": f"https://me:{SECRET}@host/x", "batch": "64", "tokens": "4096"}
    given |= {"commit": "0123456789abcdeffedcba98765432100a1b2c3d", "note": f"log in by --password {SECRET}"}
    kept = {"token": "***", "api_key": "***", "url": "https://***@host/x", "note": "log in by --password ***"}
    assert redact_labels({**given, "count": 3}) == {**given, **kept, "count": 3}
    given = {"NPM_TOKEN": SECRET, "note": f"curl -u me:{SECRET} x", "why": "max tokens of a zip file: 4"}
    assert redact_labels(given) == {**given, "NPM_TOKEN": "***", "note": "curl -u me:*** x"}


@every_row(
    "part", ["a=", "x://a:b/", "echo ", '\\"a=', "--a ", "token_id=", "a_token", "A_", "-", " ", "KEY", "'", "pw."]
)
def test_long_texts_take_no_longer_than_their_length(part: str) -> None:
    text = part * (100_000 // len(part))
    assert len(redact_command(["sh", "-c", text])) == 3  # a quadratic search would take minutes


@given(st.lists(st.text()))
def test_any_command_line_is_taken(argv: list[str]) -> None:
    assert len(redact_command(argv)) == len(argv)


def test_the_environment_is_an_allow_list() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "GPU-8f3c2a11-0b1c-4d5e-9f60-123456789abc",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "12",
        "WORLD_SIZE": "8",
        "HF_TOKEN": SECRET,
        "HOME": "/home/me",
        "SLURM_JOB_COMMENT": SECRET,
        "XLA_FLAGS": "--xla_dump_to=https://u:pw@host/x",
    }
    assert select_environment(given) == {
        "CUDA_VISIBLE_DEVICES": "GPU-8f3c2a11-0b1c-4d5e-9f60-123456789abc",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "12",
        "WORLD_SIZE": "8",
        "XLA_FLAGS": "--xla_dump_to=https://***@host/x",
    }
