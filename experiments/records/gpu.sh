#!/bin/sh
# The lines of the records that train networks: some twenty minutes on one H200, the others take a CPU seconds to minutes.
# Usage, in the root folder: FEDPROOF_DATA=FOLDER sh experiments/records/gpu.sh OUT
# FOLDER holds mnist, cifar-10-batches-bin, weights/cifar100_cnn.npz and fashion-mnist (the four files of Debian's package
# dataset-fashion-mnist). What OUT/records.jsonl holds already is kept, so an interrupted call goes on.
# Seconds on an H200, estimated: users-mnist 230, users-fashion 80, paper-mnist 70, paper-cifar/dp 15,
# instances-mnist 310, instances-cifar 300, paper-cifar/votes 30 (it encodes 12,000 images: extra `encoders`).
for line in users-mnist users-fashion paper-mnist paper-cifar/dp instances-mnist instances-cifar paper-cifar/votes; do
    python -m fedproof records "$line" --device cuda --out "${1:?say where the rows go}" || exit 1
done
