"""What Hydra's own flags show: --cfg with --package and --resolve, --info, --hydra-help, --shell-completion.

Decided here: of a run that is there its settings are shown, in Hydra's form. Everything else is Hydra's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tbexp.errors import Problem, UserError

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig


def show(args: argparse.Namespace, overrides: Sequence[str], of_run: DictConfig | None) -> None:
    """--cfg, --package, --resolve. of_run: what would run with the settings of a run that is there, if it is one.

    Raises UserError where there is no such package in it.
    """
    if of_run is None:
        hydra().show_cfg(
            config_name="config",
            overrides=list(overrides),
            cfg_type=args.cfg,
            package=args.package,
            resolve=args.resolve,
        )
        return
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    # As Hydra shows what it composes; the values of a run are resolved as they are.
    HydraConfig.instance().set_config(of_run)
    part = hydra().get_sanitized_cfg(of_run, args.cfg)
    if args.package not in (None, "_global_"):
        part = OmegaConf.select(part, args.package)
        if part is None:
            raise UserError(Problem(f"there is no {args.package}", "--package", "tbexp --cfg job shows what there is"))
    if not OmegaConf.is_config(part):
        sys.stdout.write(f"{part}\n")
        return
    head = "" if args.package in (None, "_global_") else f"# @package {args.package}\n"
    sys.stdout.write(head + OmegaConf.to_yaml(part, resolve=args.resolve))


def hydra() -> Any:
    """The Hydra that has been opened (`compose.opened`)."""
    from hydra.core.global_hydra import GlobalHydra

    return GlobalHydra.instance().hydra


def hydra_itself(words: Sequence[str]) -> None:
    """--info, --hydra-help and --shell-completion, which tbexp adds nothing to."""
    import hydra as hydra_package

    from tbexp.config.compose import register
    from tbexp.config.folders import conf_folder

    register(conf_folder())
    before, sys.argv = sys.argv, ["tbexp", *words]
    try:
        hydra_package.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(
            lambda config: None
        )()
    finally:
        sys.argv = before
