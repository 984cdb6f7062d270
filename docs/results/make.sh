#!/usr/bin/env bash
# Makes the tables and figures of docs/RESULTS.md from the run directories of its sweeps:
#   docs/results/make.sh SWEEPS
# where SWEEPS/<preset> is what `fedsim sweep <preset> --out SWEEPS/<preset>` wrote.
set -euo pipefail

sweeps=$(realpath "$1")
cd "$(dirname "$0")"

# study NAME FIGURES OPTION...: the tables of the study's report, and some of its figures
study() {
  local name=$1 figures=$2 report
  shift 2
  report=$(mktemp -d)
  python -m analysis report "$sweeps/$name" --out "$report" --title "$name" "$@"
  mkdir -p "$name"
  cp "$sweeps/$name"/{summary,aggregate}.csv "$report"/tables/*.csv "$report"/tables/*.md "$name"
  rm -f "$name"/{settings,groups_of_runs}.{csv,md}
  for figure in $figures; do cp "$report/figures/$figure.png" "$name"; done
  rm -r "$report"
}

# pairs NAME: each method of the study with and without another server rule
pairs() {
  mkdir -p "$1"
  cp "$sweeps/$1"/{summary,aggregate}.csv "$1"
  for format in md csv; do
    python -m analysis table "$sweeps/$1" --metric pairs --out "$1/pairs.$format"
  done
}

alpha=(--by algorithm --by alpha --baseline fedavg)
study fig2_small "fig2" "${alpha[@]}"
study fig2_training_small "fig2 decomposition" "${alpha[@]}"
study table1_retina_small "curves" "${alpha[@]}"
study table1_covidfl_small "curves" --baseline fedavg
study table2_small "decomposition" "${alpha[@]}"
study table3_retina_small "curves" --baseline fedavg
study variants_small "curves" --by algorithm --by fedld.orientation --baseline fedavg
study shortcut_small "groups curves" --by algorithm --by fedld.margin_weight --baseline fedavg
study fedgh_mnist_small "curves agreement"
pairs fedgh_cifar10_small
pairs fedgh_clients_small
pairs fedgh_epochs_small
pairs fedgh_synthetic_small
study fedgh_fig2_small "cosines agreement" --by num_clients --by alpha
mkdir -p lambda_small
cp "$sweeps/lambda_small"/{summary,aggregate}.csv lambda_small
python -m analysis select "$sweeps/lambda_small" --by fedld.margin_weight --within alpha \
  --out lambda_small/select.csv > lambda_small/select.md
python include.py
