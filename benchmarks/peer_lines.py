"""How the peers' process marks its lines; whatever else is printed there is some package's own."""

PROGRESS = "autotune-peers: "
ANSWER = "autotune-peers-answer: "
