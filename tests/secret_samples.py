"""Made-up secrets in every form that a log, a file or a command shows them in, and harmless texts.

`SECRETS` maps a kind to its text and to what must not be left of it. `HARMLESS` must stay as it is.
"""

from __future__ import annotations

import base64
import html
import json

X = "q7Rw2Zt9Lm4Kx8Vb3Nc6"  # random: letters and digits
WORD = "swordfish"  # a password that is a word
BASIC = base64.b64encode(b"robot:swordfish-7").decode()
_HF = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
_ARGV = ["train", "--hub_token", WORD, "--lr", "1"]
_PEM = f"-----BEGIN PRIVATE KEY-----\n{X * 3}\n-----END PRIVATE KEY-----\n"

SECRETS: dict[str, tuple[str, str]] = {
    # a line break as repr and JSON print it
    "token after an escaped line break": (repr(f"log in:\n{_HF}"), "AbCdEf"),
    "token after an escaped tab in JSON": (json.dumps({"m": f"a\t{_HF}"}), "AbCdEf"),
    "token after an escape twice": (json.dumps(json.dumps(f"a\n{_HF}")), "AbCdEf"),
    "token after a URL's line break": (f"q=a%0A{_HF}", "AbCdEf"),
    "token after a printed colour": (repr(f"\x1b[32m{_HF}\x1b[0m"), "AbCdEf"),
    "token after a JSON colour": (json.dumps(f"\x1b[32m{_HF}\x1b[0m"), "AbCdEf"),
    "name after an escaped line break": (repr(f"lr: 1\npassword: {WORD}\n"), WORD),
    "name after an escaped tab": (json.dumps(f"lr\ttoken={WORD}"), WORD),
    # a command line: as text, list, JSON, YAML
    "list of arguments": (repr(_ARGV), WORD),
    "list of arguments in JSON": (json.dumps(_ARGV), WORD),
    "indented list of arguments": (json.dumps(_ARGV, indent=2), WORD),
    "list of arguments in YAML": (f"command:\n- train\n- --hub_token\n- {WORD}\n- --lr", WORD),
    "CalledProcessError": (f"Command '{_ARGV}' returned non-zero exit status 1.", WORD),
    "arguments over lines": (f"train \\\n    --hub_token \\\n    {WORD} \\\n    --lr 1", WORD),
    "escaped list of arguments": (json.dumps({"c": json.dumps(_ARGV)}), WORD),
    "list of bytes": (repr([b"--hub-token", WORD.encode()]), WORD),
    "curl -u": (f"curl -s -u robot:{WORD} https://h/x", WORD),
    "curl --user as a list": (repr(["curl", "--user", f"robot:{WORD}"]), WORD),
    "curl --proxy-user": (f"curl --proxy-user robot:{WORD} https://h", WORD),
    "wandb login": (f"wandb login {X}", X),
    "wandb login with an option": (f"wandb login --relogin {X}", X),
    "wandb login as a list": (repr(["wandb", "login", X]), X),
    "sshpass -p": (f"sshpass -p {WORD} ssh host", WORD),
    "sshpass -pX": (f"sshpass -p{WORD} ssh host", WORD),
    "mysql -pX": (f"mysql -u root -p{WORD} db", WORD),
    "docker login -p": (f"docker login -u robot -p {WORD} r.io", WORD),
    "redis-cli -a": (f"redis-cli -h host -a {WORD} ping", WORD),
    "hf auth login --token": (f"hf auth login --token {WORD}", WORD),
    "short name of a flag": (f"train --pass {WORD}", WORD),
    "docker -e": (f"docker run -e HF_TOKEN={WORD} image", WORD),
    "override": (f"launch run stage=x '++env.HF_TOKEN=\"{WORD}\"'", WORD),
    "setenv": (f"setenv HF_TOKEN {WORD}", WORD),
    "set of fish": (f"set -gx HF_TOKEN {WORD}", WORD),
    "ENV of a Dockerfile": (f"ENV WANDB_API_KEY {WORD}", WORD),
    "PowerShell": (f'$env:HF_TOKEN = "{WORD}"', WORD),
    # addresses
    "Azure's signature": (f"https://a.blob.net/c/f?sv=2022&sig={X}%3D&se=1", X),
    "Amazon's signature": (f"https://b.s3.x/k?X-Amz-Date=2026&X-Amz-Signature={'0a1b' * 16}", "0a1b"),
    "Amazon's credential": (f"https://b/k?X-Amz-Credential=AKIA{'Q7' * 8}%2Fus", "Q7Q7"),
    "Amazon's session": (f"https://b/k?X-Amz-Security-Token={X}&a=1", X),
    "Google's signature": (f"https://s.g.com/b/o?X-Goog-Signature={'9f8e' * 20}", "9f8e"),
    "CloudFront's signature": (f"https://c.net/f?Expires=1&Signature={X}~&Key-Pair-Id=K1", X),
    "old signature of S3": (f"https://b/k?AWSAccessKeyId={X}&Expires=5", X),
    "escaped query": (html.escape(f"https://h/?a=1&sig={X}"), X),
    "query in JSON": (f'{{"u": "https://h/?a=1\\u0026sig={X}"}}', X),
    "key in a query": (f"GET /v1/models?key={X}", X),
    "code in a query": (f"GET /callback?code={X}&state=1", X),
    "proxy without a scheme": (f"using proxy robot:{WORD}@proxy.corp:3128", WORD),
    "proxy variable": (f"https_proxy=robot:{WORD}7@proxy.corp", WORD),
    "password with a slash": (f"redis://:{WORD}/7@host:6379/0", f"{WORD}/7"),
    "password with an at sign": (f"postgres://robot:{WORD}@7@host/db", WORD),
    "Slack's hook": (f"https://hooks.slack.com/services/T012AB/B034CD/{X}", X),
    "Discord's hook": (f"https://discord.com/api/webhooks/123456789/{X * 2}", X),
    "Telegram's bot": (f"https://api.telegram.org/bot12345678:{X * 2}/send", X),
    # files of other programs
    ".netrc in a line": (f"machine api.wandb.ai login user password {WORD}", WORD),
    ".netrc over lines": (f"machine api.wandb.ai\n  login user\n  password {WORD}\n", WORD),
    ".pgpass": (f"db.host.org:5432:runs:robot:{WORD}", WORD),
    "Docker's auth": (json.dumps({"auths": {"r.io": {"auth": BASIC}}}), BASIC),
    "Docker's identity": (json.dumps({"identitytoken": WORD}), WORD),
    "npm's auth": (f"//registry.npmjs.org/:_authToken={WORD}", WORD),
    "pip's index": (f"index-url = https://robot:{WORD}@pypi.corp/simple", WORD),
    "boto's file": (f"[default]\naws_secret_access_key={WORD}\n", WORD),
    "Kubernetes variable": (f"- name: HF_TOKEN\n  value: {WORD}\n", WORD),
    "Kubernetes variable in JSON": (json.dumps([{"name": "HF_TOKEN", "value": WORD}]), WORD),
    "key and value of XML": (f'<add key="ApiKey" value="{WORD}"/>', WORD),
    "element of XML": (f"<password>{WORD}</password>", WORD),
    "cells of HTML": (f"<tr><td>hub_token</td><td>{WORD}</td></tr>", WORD),
    "cells of Markdown": (f"| hub_token | {WORD} |", WORD),
    "arrow": (f"'password' => '{WORD}'", WORD),
    "walrus": (f"token := {WORD}", WORD),
    "PEM as base64": ("k: " + base64.b64encode(_PEM.encode()).decode(), "LS0tLS1CRUdJTi"),
    "key of age": ("AGE-SECRET-KEY-1" + "QPZRY9X8" * 7, "QPZRY9X8"),
    # headers
    "cookie": (f"Cookie: session={X}; csrf={WORD}", WORD),
    "set-cookie": (f"< Set-Cookie: id={X}; Path=/; Secure", X),
    "cookie in JSON": (json.dumps({"Cookie": f"id={X}; other={WORD}"}), WORD),
    "header as a tuple": (repr(("Authorization", f"Bearer {X}")), X),
    "header with a token only": (f"Authorization: {WORD}", WORD),
    "digest header": (f'Authorization: Digest username="me", response="{X}"', X),
    "Amazon's header": (f"Authorization: AWS4-HMAC Credential=a/b, Signature={X}", X),
    "proxy's header": (f"Proxy-Authorization: Basic {BASIC}", BASIC),
    "headers that http.client prints": (repr(f"GET /\r\nX-Auth-Token: {WORD}\r\n".encode()), WORD),
    "header of curl as a list": (repr(["-H", f"PRIVATE-TOKEN: {WORD}"]), WORD),
    # assignments in code and reprs
    "os.environ": (f"os.environ['HF_TOKEN'] = '{WORD}'", WORD),
    "default of environ.get": (f"environ.get('DB_PASSWORD', '{WORD}')", WORD),
    "pair": (repr([("hub_token", WORD), ("lr", 1)]), WORD),
    "bytes": (repr({"token": WORD.encode()}), WORD),
    "dataclass": (f"Config(lr=1, hub_token='{WORD}', seed=3)", WORD),
    "list of secrets": (json.dumps({"passwords": [WORD, f"{WORD}2"]}), WORD),
    "flag of a plan": (json.dumps({"hub_token": {"value": WORD, "origin": "stage"}}), WORD),
    "camel case": (json.dumps({"dbPassword": WORD}), WORD),
    "password with a comma": (f"DB_PASSWORD=horse,{WORD}", WORD),
    "password with an ampersand": (f"DB_PASSWORD=horse&{WORD}", WORD),
    "SQL": (f"ALTER USER robot WITH PASSWORD '{WORD}'", WORD),
    "connection string": (f"Server=h;Database=d;Uid=me;Pwd={WORD};", WORD),
    "storage string": (f"AccountName=a;AccountKey={X}==;EndpointSuffix=x", X),
    # variables whose names say it
    **{
        f"variable {name}": (f"{name}={WORD}7", WORD)
        for name in (
            "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SSHPASS", "SMTP_PASSWD", "SLURM_JWT", "REGISTRY_AUTH",
            "SENTRY_DSN", "DATABASE_URL", "REDIS_URL", "MONGO_URI", "CONNECTION_STRING", "GCP_CREDS", "DB_CRED",
            "SLACK_WEBHOOK", "SESSION_COOKIE", "KUBE_BEARER", "HF_TOKENS", "SIGNING_SALT",
        )
    },
    # tokens after a word, without a separator
    "token in a sentence": (f"the token {X} was refused", X),
    "api key in a sentence": (f"Incorrect API key provided: {X}", X),
    "password in a sentence": (f"password is {X}", X),
}  # fmt: skip

SHA = "e6c3044aa6201c8bfa4573c1b03142af599e730d"
HARMLESS = [
    f"commit {SHA}",
    "Step: 5, LR: 5e-06, Loss: 1.25, TPS: 1234.5, total_tokens: 430",
    "pad_token='<pad>', eos_token: </s>, token: None, token=5",
    "KeyError: 'learning_rate'",
    "sort_key: messages",
    "docker run --user 1000:1000 python:3.10@sha256:" + "ab12" * 16,
    "git clone git@github.com:allenai/open-instruct.git",
    "authors: Ann <ann@host.org>, mailto:ann.lee@host.org, email:ann7@host.org",
    "launch/redact.py:12: error: first pass: 3 of 4, second pass=7",
    "12 passed, 3 failed in 4.25s",
    "tests/test_plan.py::test_it PASSED [ 12%]",
    "forward_pass: 0.125 s, backward_pass=0.25",
    "PWD=/home/me/run OLDPWD=/home/me",
    "signature: (self, x: int = 3) -> None",
    "Signature mismatch: forward(input_ids, attention_mask)",
    "auth: true, author: Ann, authority=low, auth_method: basic",
    "ValueError: got an unexpected keyword argument 'token'",
    "usage: train [--hub_token HUB_TOKEN] [--seed SEED]",
    "    token = kwargs.pop('token', None)",
    "    self.api_key = self._resolve_api_key()",
    "    headers = build_hf_headers(token=token, library_name=name)",
    "unset ['HF_TOKEN', 'WANDB_API_KEY']",
    "--per_device_train_batch_size 1 --max_token_length 4096 --mask_token x",
    "the token is written into each row; a password must have 8 characters",
    "export HF_TOKEN first, or run `hf auth login`",
    "login with `wandb login` first",
    "secret_on_line: the value of model.path holds a secret",
    "messages_key=messages, ground_truths_key=ground_truth",
    "session: 3, cookie cutter, significant: true, design=flat",
    "/data/tokens:/run/tokens:ro",
    "https://host:8080/a?page=2&sort=key&code=200",
    "ssh://git@github.com/a, host:/path/of/it, time 12:30:59@node-7",
    "sk-learn hf_transfer hf_home AKIA pypi-server task-abcdefghijklmnopqrst",
    "Qwen2ForCausalLM LlamaForCausalLM llama-3.1-tulu-3-8b-instruct",
    "bypass: true, compass=north, pass_rate: 0.5, pass@1: 0.25",
    "keys: ['prompt', 'chosen', 'rejected']",
    "special_tokens_map.json, added_tokens.json, tokenizer_config.json",
    "token counts: {'train': 1234, 'eval': 56}",
    "Basic training of the model; bearer of news",
    "wandb: Run data is saved locally in /work/wandb/run-20261123_101112-ab12cd34",
    "| token | count |",
    "<td>tokens</td><td>1234</td>",
    "next token 'the', per-token loss 2.5, Unexpected token '}' in JSON",
    "device cuda:0, tensor([1, 2]), torch.Size([3]), key=lambda row: row[0]",
    "checkpoint-12/model-00001-of-00004.safetensors: 4.9 GB",
    "DEEPSPEED_ZERO_STAGE=3 NCCL_DEBUG=INFO TOKENIZERS_PARALLELISM=false",
]  # fmt: skip
