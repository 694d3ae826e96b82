"""A Vision Transformer in float64 NumPy, written from the paper's equations; no framework."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def layer_norm(x, p, name, epsilon):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * p[f"{name}/scale"] + p[f"{name}/bias"]


def dense(x, p, name):
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def gelu(x, kind):
    if kind == "gelu":
        return 0.5 * x * (1 + erf(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(queries, x, p, name, heads):
    """Returns the mixed values (B, N, D) and the weights (B, heads, N, M)."""

    def split(y):
        return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q = split(dense(queries, p, f"{name}/query"))
    k, v = split(dense(x, p, f"{name}/key")), split(dense(x, p, f"{name}/value"))
    scores = np.einsum("bhnd,bhmd->bhnm", q, k)
    if f"{name}/offsets" in p:  # appendix D.4: the query meets an embedding of each key's distance
        offsets, last = p[f"{name}/offsets"], q.shape[2] - 1
        for n in range(q.shape[2]):
            for m in range(k.shape[2]):
                scores[:, :, n, m] += q[:, :, n] @ offsets[m - n + last]
    weights = softmax(scores / np.sqrt(q.shape[-1]))
    mixed = np.einsum("bhnm,bhmd->bnhd", weights, v).reshape(queries.shape)
    return dense(mixed, p, f"{name}/out"), weights


def swiglu(x, p, name):
    gate = dense(x, p, f"{name}/gate")
    return dense(gate / (1 + np.exp(-gate)) * dense(x, p, f"{name}/up"), p, f"{name}/down")


def feed_forward(x, p, name, spec):
    return swiglu(x, p, name) if spec.ffn == "swiglu" else mlp(x, p, name, spec.activation)


def mlp(x, p, name, kind):
    return dense(gelu(dense(x, p, f"{name}/dense1"), kind), p, f"{name}/dense2")


def sincos(h, w, size):
    table, quarter = np.zeros((h, w, size)), size // 4
    for i in range(quarter):
        frequency = 10_000.0 ** (-i / (quarter - 1))
        for r in range(h):
            for c in range(w):
                table[r, c, i] = np.sin(c * frequency)
                table[r, c, quarter + i] = np.cos(c * frequency)
                table[r, c, 2 * quarter + i] = np.sin(r * frequency)
                table[r, c, 3 * quarter + i] = np.cos(r * frequency)
    return table.reshape(1, h * w, size)


def columns_and_rows(p, name, h, w):
    """Appendix D.4: the first half of the channels tells X, the second Y."""
    x, y = p[f"{name}/columns"][0, 0], p[f"{name}/rows"][0, :, 0]
    patches = [np.concatenate([x[c], y[r]]) for r in range(h) for c in range(w)]
    prefix = [p[f"{name}/prefix"][0]] if f"{name}/prefix" in p else []
    return np.concatenate([*prefix, np.stack(patches)])[None]


def table_of(spec, p, name):
    if spec.posemb == "2d":
        return columns_and_rows(p, name, *spec.grid)
    fixed = {"none": 0.0, "relative": 0.0, "sincos2d": sincos(*spec.grid, spec.hidden_size)}
    return fixed[spec.posemb] if spec.posemb in fixed else p[f"{name}/table"]


def encoder_block(x, p, block, spec):
    """Returns the tokens and the attention weights."""
    y = layer_norm(x, p, f"{block}/norm1", spec.norm_epsilon)
    y, weights = attention(y, y, p, f"{block}/attention", spec.num_heads)
    x = x + y * p.get(f"{block}/scale1/scale", 1.0)
    y = layer_norm(x, p, f"{block}/norm2", spec.norm_epsilon)
    y = feed_forward(y, p, f"{block}/mlp", spec)
    return x + y * p.get(f"{block}/scale2/scale", 1.0), weights


def axial_block(x, p, block, spec):
    """Appendix D.6: a block for each row of patches, then one for each column."""
    x = x.reshape(len(x), *spec.grid, -1).copy()
    for r in range(x.shape[1]):
        x[:, r], _ = encoder_block(x[:, r], p, f"{block}/row", spec)
    for c in range(x.shape[2]):
        x[:, :, c], _ = encoder_block(x[:, :, c], p, f"{block}/column", spec)
    return x.reshape(len(x), -1, x.shape[-1])


def vit(spec, p, images):
    """Endpoint name -> float64 array, the output last."""
    (ph, pw), (h, w), out = spec.patch_size, spec.grid, {}
    x = images.astype(np.float64)[:, : h * ph, : w * pw]
    patches = (
        x.reshape(len(x), h, ph, w, pw, -1).transpose(0, 1, 3, 2, 4, 5).reshape(len(x), h, w, -1)
    )
    kernel = p["embedding/kernel"].reshape(-1, spec.hidden_size)
    out["embedding"] = x = patches @ kernel + p["embedding/bias"]
    x = x.reshape(len(x), h * w, -1)
    at_stem = spec.posemb_at == "stem"
    table = table_of(spec, p, "posembed_input") if at_stem else 0.0
    early = not at_stem or (spec.posemb in ("learn", "2d") and spec.posemb_includes_cls)
    names = ["cls/token"] if spec.pool.startswith("token") else []
    names += ["dist/token"] if spec.distilled else []
    before = [np.repeat(p[name], len(x), 0) for name in names]
    x = (
        np.concatenate([*before, x], 1) + table
        if early
        else np.concatenate([*before, x + table], 1)
    )
    if spec.num_registers:
        registers = np.repeat(p["registers/tokens"], len(x), 0)
        x = np.concatenate([x[:, : len(names)], registers, x[:, len(names) :]], 1)
    out["posembed_input"] = x
    for i in range(spec.num_layers):
        block = f"encoderblock_{i}"
        if not at_stem:
            own = spec.posemb_at == "layers"
            x = x + table_of(spec, p, f"posembed_{i}" if own else "posembed_input")
        if spec.attention == "axial":
            x = axial_block(x, p, block, spec)
        else:
            x, out[f"attention_{i}"] = encoder_block(x, p, block, spec)
        out[block] = x
    out["encoded"] = x = layer_norm(x, p, "encoder_norm", spec.norm_epsilon)
    distilled = x[:, 1]
    if spec.pool in ("token", "first"):
        x = x[:, 0]
    elif spec.pool == "gap":
        x = x.mean(1)
    elif spec.pool == "map":
        x, _ = attention(
            np.repeat(p["map/probe"], len(x), 0), x, p, "map/attention", spec.num_heads
        )
        y = layer_norm(x, p, "map/norm", spec.norm_epsilon)
        x = (x + mlp(y, p, "map/mlp", spec.activation))[:, 0]
    if spec.representation_size:
        x = dense(x, p, "pre_logits")
        x = np.tanh(x) if spec.representation_tanh else x
    if spec.distilled:
        out["pre_logits_dist"] = distilled
    out["pre_logits"] = x
    if spec.num_classes:
        x = dense(x, p, "head")
        if spec.distilled:
            x = (x + dense(distilled, p, "head_dist")) / 2
        out["logits"] = x
        if spec.classifier_activation == "softmax":
            out["probabilities"] = softmax(x)
        elif spec.classifier_activation == "sigmoid":
            out["probabilities"] = 1 / (1 + np.exp(-x))
    return out
