"""The text of `tbexp --help`: every group, its options, and examples. Reads conf/ without Hydra, to be quick."""

from __future__ import annotations

from tbexp.config.folders import chosen_by_default, conf_folder, options
from tbexp.config.schema import SINGLE_STAGES, STAGES

HEAD = """\
tbexp: which tasks are worth training on, and does training on them make an agent more reliable?

  tbexp [key=value ...] [group=option ...]     run the experiment, or go on with it
  tbexp -m key=value1,value2 ...               one run per value
  tbexp --cfg job [...]                        show the composed config, run nothing
  tbexp dry_run=true [...]                     check and show the plan

Stages: {stages}; alone: {alone}.
The same command again goes on where it stopped; what is finished is not done again.
"""

EXAMPLES = """
Examples
  tbexp
      the whole default experiment on this machine's CPU
  tbexp experiment=smoke
      every stage in a few minutes, too short to learn anything
  tbexp 'stages=[probe,select,report]' tasks.root=DATA policy=chat policy.endpoint.base_url=http://HOST:8000/v1 \\
        policy.endpoint.model=NAME policy.endpoint.api_key_env=VARIABLE
      which tasks of a dataset in ThinkingBox format are worth training on, judged by an endpoint's model
  tbexp -m buckets.bands.rarely.upper=0.05,0.08,0.12 'stages=[probe,select]'
      three pools from one probe
  tbexp model=folder model.path=FOLDER topology=gpu1 training.steps=100 optimizer=published
      the weights of a Hugging Face folder on one GPU

Exit codes: 0 done, 2 something to fix in the command or its files, 3 the world failed (endpoints, servers),
130 interrupted, 1 a defect of tbexp.
tbexp --hydra-help lists Hydra's own flags.
"""


def help_text() -> str:
    conf = conf_folder()
    groups, chosen = options(conf), chosen_by_default(conf)
    order = [group for group in chosen if group in groups] + [group for group in groups if group not in chosen]
    width = max(len(name) for group in groups.values() for name in group)
    left = max(map(len, groups))
    lines = [HEAD.format(stages=", ".join(STAGES), alone=", ".join(SINGLE_STAGES)), "Groups (* is the default)"]
    for group in order:
        for number, (option, comment) in enumerate(groups[group].items()):
            mark = "*" if chosen.get(group) == option else " "
            name = group if number == 0 else ""
            lines.append(f"  {name.ljust(left)} {mark}{option.ljust(width)}  {comment}".rstrip())
    if "sweep" in groups:
        lines.append("  (a sweep is added: tbexp -m +sweep=NAME)")
    return "\n".join(lines) + "\n" + EXAMPLES
