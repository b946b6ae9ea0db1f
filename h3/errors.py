"""What the model code refuses.

H3Error
├── CheckpointError  a file is missing, cut short, or not what its config says
├── ConfigError      sizes that do not fit together, or a value that is none of the possible ones
├── ResumeRefused    what an earlier attempt has left cannot be used
├── PartitionError   fewer tokens or heads than ranks
├── PlacementError   more weights than the machine has memory for
├── RanksDisagree    ranks were started with unlike files, settings or libraries
└── RanksFailed      a rank broke off for another reason than those above: nothing is wrong with the usage
"""


class H3Error(Exception):
    """Base of all errors that `h3` raises."""


class ResumeRefused(H3Error):
    """What an earlier attempt has left does not belong to this render, or cannot be read."""


class CheckpointError(H3Error):
    """A checkpoint is incomplete or wrong; the text names the file and, where there is one, the tensor."""


class ConfigError(H3Error):
    """A model configuration whose sizes do not fit together."""


class PartitionError(H3Error):
    """A split would leave a rank without tokens or heads."""


class PlacementError(H3Error):
    """No way to place the model on this machine; the text has the sizes."""


class RanksDisagree(H3Error):
    """Ranks that are to compute together differ; the text says in what, rank by rank."""


class RanksFailed(H3Error):
    """A rank broke off; the text has the first cause and where the ranks' logs are."""
