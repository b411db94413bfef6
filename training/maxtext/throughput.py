"""How fast a run trained, in words: tokens, waiting, and operations beside an accelerator's peak.

MFU is the share of the peak that the operations of the model take, as MaxText counts them: forward
and backward pass, half of the attention matrix, nothing twice for what is computed again.
"""

from training.maxtext.feed import Fed

# 10^12 operations a second in bfloat16, dense, by JAX's device_kind. Sources: the specifications
# of each version in docs.cloud.google.com/tpu/docs; NVIDIA's data sheets of A100, H100 and H200.
PEAK_TFLOPS = {
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H200": 989.0,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,  # v5e
    "TPU v5e": 197.0,
    "TPU v5": 459.0,  # v5p
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,  # v6e
    "TPU v6e": 918.0,
}


def throughput_text(fed: Fed, device_kind: str) -> str:
    """Returns tokens a second, the waiting share and TFLOP/s per device; the MFU of a known chip.

    Args:
      device_kind: of the devices that trained, as JAX names it.
    """
    text = (
        f"{fed.tokens_per_s:,.0f} real tokens a second, waited for data {fed.waited_share:.1%} of "
        f"{fed.seconds:.0f} s, {fed.tflops_per_s:.3g} TFLOP/s per device"
    )
    if peak := PEAK_TFLOPS.get(device_kind):
        text += f", MFU {fed.tflops_per_s / peak:.1%}"
    return text
