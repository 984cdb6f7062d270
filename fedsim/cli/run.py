"""``fedsim run``."""

from __future__ import annotations

from pathlib import Path

import click

from fedsim.cli import options
from fedsim.cli.common import configuration, interruptible, trackers_of
from fedsim.cli.dry_run import dry_run_options, show_estimate
from fedsim.core.reading import check_on_disk


@click.command(cls=options.SettingsCommand, shown=options.common)
@options.preset_options
@options.set_any_option
@options.out_option(help="Directory of the run; a new one under runs/ by default.")
@dry_run_options
@options.track_option
@options.verbose_option
@options.help_all_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    preset: str | None,
    config: str | None,
    out: str | None,
    dry_run: bool,
    no_measure: bool,
    track: tuple[str, ...],
    flags: options.Settings,
) -> None:
    """Run one experiment and write its tables.

    Without options, a classification task: FedLD on scikit-learn's digits, 50 clients, 10 % of them
    in each of 100 rounds, Dirichlet(0.5). Flags win over the file, the file over the preset.

    \b
      fedsim run -a fedavg --alpha 0.1 --seed 1
      fedsim run -a fedld --server fedavg           margin control alone
      fedsim run -a fedld --margin none             principal aggregation alone
      fedsim run -d retinamnist --data-dir data/ --rounds 50
      fedsim run --preset table1_retina_split1 --data-dir data/ --gpus-per-client 0.2
      fedsim run --preset table2 --data-dir data/ --dry-run      what it will take
      fedsim run --config runs/digits/fedld/RUN/config.yaml      the same run again

    Ctrl-C and SIGTERM save a checkpoint; 'fedsim resume DIR' continues the run.
    """
    from fedsim.display.progress import display
    from fedsim.storage.run_dir import check_free

    check_on_disk("--out", out)
    folder, shown = Path(out) if out else None, display()
    with interruptible(ctx, shown):
        settings = configuration(preset, config, flags)
        if dry_run or no_measure:
            show_estimate([settings], 1, measured=not no_measure)
            return
        if folder is not None:
            check_free(folder)
        from fedsim.training import driver  # imports torch, which takes seconds

        driver.run(settings, folder, [shown, *trackers_of(track)])
