"""The schema of every config group: what a key means, its unit, and which values it takes.

YAML in conf/ is composed by Hydra and validated here as a whole. Unknown keys are errors. What needs more than one key
to decide stands in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tbexp.config.serve import ServeConfig
from tbexp.config.values import (
    AbsolutePath,
    AtLeastOne,
    Count,
    Date,
    Group,
    Integer,
    NotNegative,
    Positive,
    Share,
)

STAGES = ("probe", "select", "train", "evaluate", "report")
SINGLE_STAGES = ("compare", "parity", "regrade", "serve", "status", "cancel", "doctor")
BANDS = ("rarely", "hard", "medium", "often", "nearly_always")


class Imitation(Group):
    """How a base policy of the sample domain learns from demonstrations (tbexp/samples/imitation.py)."""

    steps: AtLeastOne  # imitation steps
    batch: AtLeastOne = 32  # episodes per imitation step
    learning_rate: Positive
    mistakes: Share = 0.5  # share of imitated episodes that carry a seeded mistake
    seed: Integer = 0


class TinyModel(Imitation):
    """The tiny base policy of the sample domain, built on first use."""

    layers: AtLeastOne = 2
    hidden: AtLeastOne = 128
    intermediate: AtLeastOne = 512
    heads: AtLeastOne = 4
    kv_heads: AtLeastOne = 2
    steps: AtLeastOne = 600
    learning_rate: Positive = 3e-3


class Warmup(Imitation):
    """What a pretrained model is taught of the sample domain before it is probed."""

    steps: AtLeastOne = 150
    learning_rate: Positive = 1e-4


class ModelShape(Group):
    """What estimates of memory and time need, until the model's folder is there: then its config.json counts."""

    parameters_billion: NotNegative = 0.0  # 0: not known, no estimate
    layers: Count = 0
    attention_layers: Count = 0  # with full attention, whose keys and values grow with the conversation
    hidden: Count = 0
    intermediate: Count = 0
    heads: Count = 0
    kv_heads: Count = 0
    head_dim: Count = 0
    vocabulary: Count = 0
    tied_embeddings: bool = False  # one matrix is both the embeddings and the head


class ModelConfig(Group):
    name: str
    kind: Literal["tiny", "warmed", "folder"] = "folder"  # made from nothing, taught the sample domain, or as it is
    path: str | None = None  # Hugging Face folder, for kind=folder and warmed; null with warmed: SmolLM2-135M-Instruct
    format: Literal["qwen3_xml", "hermes"] = "qwen3_xml"  # how it writes tool calls
    max_context: AtLeastOne = 2048  # tokens of prompt and answer together
    tiny: TinyModel = TinyModel()
    warmup: Warmup = Warmup()
    shape: ModelShape = ModelShape()


class TasksConfig(Group):
    name: str
    root: str | None = None  # folder in ThinkingBox format; null: the sample domain that ships with tbexp
    agent: str = "agent"  # stem of dataset/agent/<agent>.yaml
    # A test list, a test file or a folder of them; or selectors; null: every task that is not held out.
    candidates: str | list[str] | None = None
    # The tasks of evaluate, never probed, never trained on; null: none, of the sample domain those that it ships.
    held_out: str | list[str] | None = None
    format_query: bool = True  # fill in {init[...]} where a task asks for it; false: never, as ThinkingBox does
    server_python: str | None = None  # interpreter of {python} in servers.yaml; null: this one

    @model_validator(mode="before")
    @classmethod
    def _of_the_sample(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("root") is None and values.get("held_out") is None:
            return {**values, "held_out": "releases/held_out.yaml"}
        return values


class Band(Group):
    upper: Share | None = None  # exclusive upper edge of the pass rate; the last band has none
    keep: bool  # are its tasks trained on


class Bands(Group):
    """From the tasks that the base policy hardly ever solves to those that it nearly always does."""

    rarely: Band
    hard: Band
    medium: Band
    often: Band
    nearly_always: Band


class Buckets(Group):
    name: str
    by: Literal["band", "signal"] = "band"  # what keeps a task: its band, or the chance of a mixed group
    bands: Bands
    min_band_mass: Share = 0.0  # posterior mass the chosen band must have
    min_mixed_probability: Share = 0.5  # for by=signal: least probability that a group is mixed


class GroupConfig(Group):
    name: str
    size: Annotated[int, Field(ge=2, strict=True)]  # attempts per task and update
    groups_per_update: AtLeastOne  # tasks per update


class Optimizer(Group):
    """AdamW."""

    name: str
    lr: Positive
    weight_decay: NotNegative = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    warmup_steps: Count = 0  # linear from 0; then constant
    clip_grad: Positive = 1.0  # largest norm of the gradient


class Topology(Group):
    name: str
    device: Literal["cpu", "cuda"]
    nodes: AtLeastOne = 1
    gpus_per_node: AtLeastOne = 1  # on the CPU: logical devices, one trainer rank each
    sequence_parallel: AtLeastOne = 1  # devices that share one sequence in training (Ulysses)
    rollout_tensor_parallel: AtLeastOne = 1  # devices of a node that share one copy of the weights in generation
    rollout: Literal["transformers", "vllm"] = "transformers"  # what generates: transformers on cpu, vllm on cuda
    dtype: Literal["float32", "bfloat16"] = "float32"
    # of the trainer on cuda: flash_attention_2 needs the package flash-attn, and is needed for sequence_parallel > 1
    attention: Literal["flash_attention_2", "sdpa"] = "flash_attention_2"
    # per device and pass of the trainer; null: one whole conversation, on cpu as many as 8 GiB of activations hold
    micro_batch_tokens: AtLeastOne | None = None
    offload: bool = False  # parameters and optimiser state to host memory while they are not used
    threads: AtLeastOne = 1  # torch threads per process, CPU only
    # A training on this machine forks its processes from one that has imported torch, and a sweep's trainings share it
    # and its Ray.
    warm_workers: bool = True
    agent_workers: AtLeastOne = 1  # processes that run episodes in training
    gpu_memory_utilization: Share = 0.7  # of vLLM
    gpu_memory_gib: Positive | None = None  # of one GPU, to check that the training fits; null: not checked
    cuda_graphs: Literal["decode", "compiled", "none"] = "compiled"  # of vLLM; decode: without torch.compile


class Launcher(Group):
    """Where the stages run. Everything below `kind` is for Slurm; null leaves a choice to the site."""

    name: str
    kind: Literal["local", "slurm"]
    secrets_file: AbsolutePath | None = None  # NAME=value lines, mode 0600, read where an endpoint is called
    partition: str | None = None
    cpu_partition: str | None = None  # of jobs that use no GPU; null: partition
    account: str | None = None
    qos: str | None = None
    exclude: str | None = None  # nodes that are not to be used
    minutes: AtLeastOne = 1440  # time limit of a job that probes, trains or evaluates
    cpu_minutes: AtLeastOne = 60  # time limit of a job that needs one CPU only
    signal_seconds: AtLeastOne = 600  # warning before the limit; must be enough for a step, saving it and leaving
    requeue: bool = True  # a job that was warned goes back into the queue and goes on from what it saved
    idle_restarts: Count = 2  # starts in a row that may keep nothing new, before a job is given up
    gpus_per_node: Count | None = None  # of jobs that use GPUs; null: topology.gpus_per_node, on the CPU none
    # Of a node of a job that trains or makes attempts; null: by the next four.
    cpus_per_node: AtLeastOne | None = None
    memory_gb: Positive | None = None
    cpus_per_gpu: AtLeastOne | None = 8  # for each GPU that is asked for; null here and below: the site's default
    memory_gb_per_gpu: Positive | None = 96.0
    cpus_without_gpu: AtLeastOne | None = 8  # of a job that uses no GPU, such as attempts by an endpoint
    memory_gb_without_gpu: Positive | None = 32.0
    cpu_memory_gb: Positive | None = 8.0  # of a job that needs one CPU only (select, report)
    shards: AtLeastOne | None = None  # jobs that a probe or an evaluation is divided into; null: topology.nodes
    check_endpoints: bool = True  # at submission: something listens at each; false: only the nodes can reach them
    join_seconds: Positive = 600.0  # for all tasks of a training to begin, then for all nodes to join Ray
    # An all-reduce across a training's nodes before it starts; nodes that fail are excluded, and the job is requeued.
    check_network: bool = True
    network_seconds: Positive = 60.0  # of one all-reduce
    # Of gloo and NCCL between nodes, such as ib0; null: the one that leads to the first node, unless the site's
    # `setup` has set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME.
    network_interface: str | None = None
    setup: list[str] = Field(default_factory=list)  # shell lines before the job, such as `module load ...`
    container: str | None = None  # image of srun --container-image (pyxis)
    container_mounts: list[str] = Field(default_factory=list)
    python: str | None = None  # interpreter on the nodes; null: this one
    sbatch: dict[str, Any] = Field(default_factory=dict)  # further sbatch options by their long names


class Sampling(Group):
    temperature: NotNegative = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, strict=True)] = 1.0
    top_k: Annotated[int, Field(ge=-1, strict=True)] = -1  # -1: off
    max_tokens: AtLeastOne = 128  # per completion


class Limits(Group):
    """What one attempt of the agent may spend; reaching a limit is the agent's failure, never a system error."""

    actions: AtLeastOne = 24  # tool batches, visible texts, and completions of thoughts alone
    tokens: AtLeastOne = 1024  # tokens the policy may produce in one attempt
    generation_seconds: Positive = 600.0  # of the policy's own; of an endpoint's requests those that are answered count
    # What a completion without text and calls means; ask_user: the user's turn, as in `tb infer`.
    empty_completion: Literal["fail", "ask_user"] = "fail"


class Endpoint(Group):
    """An OpenAI-compatible chat endpoint. The key is named, never held."""

    base_url: str | None = None  # such as http://HOST:8000/v1
    model: str | None = None  # the name that the endpoint knows the model by
    api_key_env: str | None = None  # environment variable that holds the key; null: it needs none
    timeout_s: Positive = 60.0  # of one request
    retries: Count = 5  # further tries of a request that failed in a way that may pass
    max_concurrency: AtLeastOne = 16  # requests in flight; at a server that tbexp starts as many as attempts, or more
    requests_per_minute: Positive | None = None  # at most, evenly spread, further tries included; null: no limit
    extra_body: dict[str, Any] = Field(default_factory=dict)  # more fields of each request's body


class VllmServer(Group):
    """How `vllm serve` serves a policy's weights: by hand, a dry run shows the command, or started by tbexp (serve)."""

    # Hugging Face folder or name; null: model.path, and the dry run shows MODEL where parsers are set
    model: str | None = None
    command: list[str] = Field(default_factory=lambda: ["vllm"])  # the program, and words before `serve`
    ready_timeout_s: Positive = 1800.0  # from its start until it answers; longer: exit 3
    tensor_parallel_size: AtLeastOne = 1
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    max_model_len: AtLeastOne | None = None  # tokens; null: what the model's config says
    gpu_memory_utilization: Share = 0.85
    max_num_seqs: AtLeastOne = 16
    max_num_batched_tokens: AtLeastOne = 8192
    tool_call_parser: str | None = None  # null: calls are read by tbexp, as model.format says
    reasoning_parser: str | None = None
    port: AtLeastOne = 8001
    flags: list[str] = Field(default_factory=list)  # further options without a value, such as enable-prefix-caching


class PolicyConfig(Group):
    name: str
    kind: Literal["local", "chat", "scripted"]  # local: the weights of `model`, read by tbexp itself
    endpoint: Endpoint = Endpoint()
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    concurrency: AtLeastOne = 64  # attempts in flight
    # vllm: whoever needs the policy starts `vllm serve` here, waits until it is ready, and ends it. For kind=local it
    # serves the weights of `model` or the trained ones, by token ids: tbexp renders and reads, as in training. auto:
    # vllm for kind=local where topology.rollout is vllm, else none.
    serve: Literal["auto", "none", "vllm"] = "none"
    vllm: VllmServer = VllmServer()  # of that server, or of one that is started by hand behind the endpoint
    # Stop (exit 3) when the endpoint's tokens cost more by the price table: of one stage's attempts with one policy,
    # not of the run; those made before count. An endpoint that tells no tokens ends it too.
    spending_cap_usd: Positive | None = None


class UserConfig(Group):
    name: str
    kind: Literal["scripted", "chat", "none"]
    endpoint: Endpoint = Endpoint()
    temperature: NotNegative = 1.0
    max_tokens: AtLeastOne = 512  # per answer
    may_end: bool = False  # may the simulated user end the conversation
    spending_cap_usd: Positive | None = None  # as of policy; in a training of each worker process, since it was started


class JudgeConfig(Group):
    name: str
    kind: Literal["scripted", "chat", "none"]
    endpoint: Endpoint = Endpoint()
    style: Literal["legacy", "motivation"] = "legacy"  # a bare verdict, or reasons before it
    # How an answer becomes yes or no: by the verdict its sentence gives, or by ThinkingBox's rule (first or last word).
    reading: Literal["sentence", "reference"] = "sentence"
    answers: dict[str, bool] = Field(default_factory=dict)  # kind=scripted: part of a question -> yes (true) or no
    max_tokens: AtLeastOne = 512
    spending_cap_usd: Positive | None = None  # as of user


class SessionProxy(Group):
    """A session proxy that runs already. Its key is named, never held."""

    url: str = "http://127.0.0.1:7111"
    api_key_env: str | None = None  # environment variable that holds its key; null: it needs none


class Environment(Group):
    """An OpenEnv server of tasks, such as `stages=[serve] serve=openenv`. User, judge and check are its own."""

    url: str | None = None  # such as http://HOST:8000
    timeout_s: Positive = 1800.0  # of one of its answers


class SandboxConfig(Group):
    name: str
    # Servers forked from warm ones, started as new processes, or kept by a session proxy that runs already; openenv:
    # whole attempts at an environment server.
    kind: Literal["prefork", "process", "proxy", "openenv"]
    proxy: SessionProxy = SessionProxy()  # for kind=proxy
    environment: Environment = Environment()  # for kind=openenv
    servers: str | None = None  # servers.yaml; null: <tasks.root>/servers/servers.yaml
    allow_env: list[str] = Field(default_factory=list)  # names that server commands and graders may see
    # Names that {env[NAME]} may have in the headers of remote servers; neither servers nor graders see them.
    remote_env: list[str] = Field(default_factory=list)
    call_timeout_s: Positive = 60.0  # of one tool call; longer: the world's failure
    start_timeout_s: Positive = 60.0  # of one attempt's servers
    # CPU time of one check, in whole seconds rounded up; it may take four times as long, waiting or asleep.
    grade_timeout_s: Positive = 30.0
    grade_memory_mib: AtLeastOne = 1024  # of one check's process
    # A check that returns a number below 1 has failed with that reward (share), or, as in ThinkingBox, passed (pass).
    grade_numbers: Literal["share", "pass"] = "share"
    max_result_chars: AtLeastOne = 200_000  # longer tool results are cut with a marker
    max_sessions: AtLeastOne = 128  # open at once
    # The knowledge search that servers look for at 127.0.0.1:8108: none, one that tbexp starts (embedded: results are
    # not comparable with published ones), or a Typesense server (external).
    search: Literal["none", "embedded", "external"] = "none"
    search_address: str = "127.0.0.1:8108"  # HOST:PORT of search=external; the servers' connections are led there


class Fields(Group):
    """Dotted paths into foreign JSONL rows."""

    uid: str = "uid"
    passed: str = "test_result.result"
    system_error: str | None = "is_system_error"


class Probe(Group):
    name: str
    kind: Literal["fixed", "adaptive"] = "fixed"  # adaptive: a task stops when its decision can hardly change
    attempts: AtLeastOne = 8  # per task; adaptive: at most, and on average with spend_saved
    level: Annotated[float, Field(ge=0.5, le=1.0, strict=True)] = 0.95  # adaptive: probability of the final decision
    least: AtLeastOne = 3  # adaptive: attempts before a task can stop
    spend_saved: bool = False  # adaptive: spend what was saved on the tasks that are least certain
    max_attempts: AtLeastOne | None = None  # per task, with spend_saved; null: three times `attempts`
    rows: list[str] = Field(default_factory=list)  # JSONL files made elsewhere, instead of probing
    fields: Fields = Fields()
    retries: Count = 3  # further tries of an attempt that ended in a system error
    tb_infer: bool = False  # write the attempts as rows of `tb infer` too: probe-tb_infer.jsonl in the run's folder
    max_system_error_share: Share = 0.05  # of all attempts after retries; above: exit 3


class ReferencePolicy(PolicyConfig):
    """The stronger model, as a policy behind an endpoint; as for policy=chat if nothing else is set."""

    name: str = "reference"
    kind: Literal["chat", "scripted"] | None = None  # type: ignore[assignment]  # null: there is none
    format: Literal["qwen3_xml", "hermes"] | None = None  # of a server without a tool parser: how calls are written
    endpoint: Endpoint = Endpoint(timeout_s=600.0)
    serve: Literal["none", "vllm"] = "none"
    sampling: Sampling = Sampling(max_tokens=8192)
    limits: Limits = Limits(actions=100, tokens=106496, generation_seconds=1800.0)
    concurrency: AtLeastOne = 16


class Reference(Group):
    """The screen by a stronger model: tasks that it does not solve are not trained on."""

    rows: list[str] = Field(default_factory=list)  # its attempts; neither these nor a policy: no screen
    policy: ReferencePolicy = ReferencePolicy()  # it is probed first, and what it does not solve is never probed
    attempts: AtLeastOne = 4  # per candidate, of `policy`
    min_clean: AtLeastOne = 1
    min_passed: Count = 1
    threshold: Share | None = None  # with `probability`: its pass rate must be above this
    probability: Share | None = None  # least posterior probability of that


class SelectionConfig(Group):
    name: str
    # selected: what `buckets` keeps; random: as many tasks, drawn by `seed` whatever their difficulty; all: whatever
    # their difficulty. The other gates hold for each.
    pool: Literal["selected", "random", "all"] = "selected"
    min_clean: AtLeastOne = 3  # attempts that are no system errors
    exclude: str | list[str] = Field(default_factory=list)  # uids, or a YAML/JSON file of them
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0, strict=True)] = 0.2
    seed: Integer = 42
    reference: Reference = Reference()


class Training(Group):
    name: str
    steps: AtLeastOne  # updates
    validate_every: AtLeastOne = 10  # updates; the checkpoint is chosen among those
    validation_attempts: AtLeastOne = 4  # per validation task
    save_every: AtLeastOne = 5  # updates between checkpoints
    keep_checkpoints: AtLeastOne = 2  # newest, besides the chosen one
    clip_low: Positive = 0.2
    clip_high: Positive = 0.2
    normalise_by_std: bool = True  # advantages by the standard deviation of their group
    mini_batches: AtLeastOne = 1  # optimiser steps per update
    max_prompt_tokens: AtLeastOne | None = None  # system message, tools and query; null: half of model.max_context
    refill_rounds: Count = 4  # generation batches per update at most, zero-variance groups being replaced
    verl: dict[str, Any] = Field(default_factory=dict)  # dotted verl keys, checked against verl's own config


class Evaluation(Group):
    name: str
    attempts: AtLeastOne = 20  # per held-out task, the k of pass@k
    rows: list[str] = Field(default_factory=list)  # JSONL files made elsewhere, instead of evaluating
    fields: Fields = Fields()
    allow_partial: bool = False  # report although attempts are missing
    policies: list[Literal["base", "trained"]] = Field(default_factory=lambda: ["base", "trained"])  # type: ignore[arg-type]
    retries: Count = 3
    tb_infer: bool = False  # write the attempts as rows of `tb infer` too: evaluate/tb_infer-<policy>.jsonl
    tb_agg: bool = False  # also the reference's own aggregation: evaluate/tb_agg-<policy>.{json,csv}
    bootstrap: Annotated[int, Field(ge=100, strict=True)] = 2000  # samples of the intervals; few would make them up
    seed: Integer = 7


class ModelPrice(Group):
    """US dollars per million tokens, as OpenAI counts them: cached ones are part of the prompt, reasoning ones of the
    completion.
    """

    prompt: NotNegative = 0.0
    cached: NotNegative = 0.0
    completion: NotNegative = 0.0
    reasoning: NotNegative | None = None  # null: as the rest of the completion
    attempt: NotNegative = 0.0  # US dollars per attempt, besides: where nothing else is known, see prices=published

    @model_validator(mode="after")
    def _some(self) -> ModelPrice:
        if all(getattr(self, name) is None for name in self.model_fields_set):
            raise ValueError("holds no price; give prompt, cached and completion; of a model that is free, prompt: 0")
        return self

    @property
    def by_attempt(self) -> bool:
        """Whether no token has a price."""
        return self.attempt > 0 and not (self.prompt or self.cached or self.completion or self.reasoning)


class Prices(Group):
    name: str
    dated: Date  # when the prices were looked up
    models: dict[str, ModelPrice] = Field(default_factory=dict)  # by endpoint.model
    gpu_hour_usd: NotNegative = 0.0  # of one device, for local weights: evaluation, probing, training


class Tracking(Group):
    name: str
    kind: Literal["mlflow", "none"]
    uri: str | None = None  # null: sqlite:///outputs/mlflow.db
    experiment: str | None = None  # null: the experiment's name
    # Of chosen checkpoints in MLflow's model registry, each a version of it; null: the experiment's name.
    registered_model: Annotated[str, Field(pattern=r"^[^/:'\"`]+$")] | None = None
    upload_model: bool = False  # copy a chosen checkpoint's weights to MLflow; false: it is told where they are


class CompareConfig(Group):
    """stages=[compare]: runs side by side."""

    name: str
    # MLflow run ids, run names (NAME, or EXPERIMENT/NAME), run folders, a sweep's parent run, published:<model>.
    runs: list[str] = Field(default_factory=list)
    baseline: str | None = None  # one of `runs`, which the others are tested against; null: the first
    pairs: Literal["baseline", "all"] = "baseline"  # test each run against the baseline, or each pair of runs
    policy: Literal["base", "trained", "rows"] | None = None  # null: the trained one, else rows, else base
    bootstrap: Annotated[int, Field(ge=100, strict=True)] = 2000  # samples of the intervals
    seed: Integer = 7


class ParityConfig(Group):
    """stages=[parity]: recorded outputs, read by tbexp and by others."""

    name: str
    # JSONL: an output a line, trajectories of an attempt store, rows of `tb infer`.
    recordings: list[str] = Field(default_factory=list)
    tools: str | None = None  # JSON: the tools of recordings that hold none, or an object of such lists by name
    # vllm, verl: their parsers in this process's Python or in parity.python; server: a live chat server.
    readers: list[Literal["vllm", "verl", "server"]] = Field(default_factory=lambda: ["verl"])  # type: ignore[arg-type]
    python: str | None = None  # a Python that has the readers' packages; null: this one
    tokenizer: str | None = None  # folder, for vllm; null: the model's own
    tool_parser: str | None = None  # vLLM's --tool-call-parser; null: the one of the recording's format
    reasoning_parser: str | None = "qwen3"  # vLLM's --reasoning-parser, for recordings of models that think
    thinking: bool = False  # recordings that do not say so are of a model that thinks
    thinking_open: bool = False  # its template opens the thought
    compare: list[Literal["calls", "text", "reasoning"]] = Field(
        default_factory=lambda: ["calls", "text", "reasoning"]  # type: ignore[arg-type]
    )
    endpoint: Endpoint = Endpoint()  # of readers=[server]
    max_mismatch: Share = (
        0.0  # share of outputs that may be read differently, by model, format and reader; above: exit 3
    )


class Config(Group):
    """The whole experiment."""

    # of the experiment: outputs/<name>/<run>, and the MLflow experiment
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\- ]*$")]
    seed: Count = 1
    stages: list[Literal[STAGES + SINGLE_STAGES]]  # type: ignore[valid-type]
    force: list[Literal[STAGES]] = Field(default_factory=list)  # type: ignore[valid-type]
    dry_run: bool = False  # check and show the plan, run nothing
    store: AbsolutePath  # folder of the stages' results, shared by runs
    model: ModelConfig
    tasks: TasksConfig
    buckets: Buckets
    group: GroupConfig
    optimizer: Optimizer
    topology: Topology
    launcher: Launcher
    policy: PolicyConfig
    user: UserConfig
    judge: JudgeConfig
    sandbox: SandboxConfig
    probe: Probe
    selection: SelectionConfig
    training: Training
    evaluation: Evaluation
    prices: Prices
    tracking: Tracking
    compare: CompareConfig
    parity: ParityConfig
    serve: ServeConfig

    @model_validator(mode="before")
    @classmethod
    def _who_generates(cls, values: Any) -> Any:
        """policy.serve=auto becomes what it means here."""
        policy = values.get("policy") if isinstance(values, Mapping) else None
        if not isinstance(policy, Mapping) or policy.get("serve") != "auto":
            return values
        topology = values.get("topology")
        vllm = isinstance(topology, Mapping) and topology.get("rollout") == "vllm" and policy.get("kind") == "local"
        return {**values, "policy": {**policy, "serve": "vllm" if vllm else "none"}}
