"""What help pages name, without importing what bears the name; a test holds each against its registry."""

ENGINES = ("event", "register", "both")
LAYER_ORDERS = ("change", "ratio", "network")
NUMBER_SETS = ("gemm", "resnet50", "vgg16", "yolov2", "micro", "first_layers", "v3", "v3_odd", "training")
TRACE_FORMATS = (".txt", ".png", ".svg", ".pdf", ".vcd", ".perfetto-trace", ".pftrace")
RESULT_FILE = "run.json"
