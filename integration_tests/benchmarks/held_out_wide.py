"""A wide set of models for `gpu_suite.py --model held_out_wide:NAME`, chosen before measuring:
one of each architecture that `held_out` and `held_out_more` leave out.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from held_out import mean_square, own_loss, timm_case, token_ids

from dovetail.bench.models import Case

Builder = Callable[[bool], Case]

# --- images -------------------------------------------------------------------------------------

convnextv2 = timm_case("convnextv2_tiny", 32)
mobilevitv2 = timm_case("mobilevitv2_100", 32)
efficientformer = timm_case("efficientformerv2_s1", 32)
xcit = timm_case("xcit_tiny_12_p16_224", 32)
edgenext = timm_case("edgenext_small", 32)
ghostnet = timm_case("ghostnetv2_100", 64)
repvgg = timm_case("repvgg_b0", 32)
poolformer = timm_case("poolformerv2_s12", 32)
gmlp = timm_case("gmlp_s16_224", 32)
levit = timm_case("levit_192", 64)
twins = timm_case("twins_svt_small", 32)
volo = timm_case("volo_d1_224", 16)
hiera = timm_case("hiera_tiny_224", 32)
nfnet = timm_case("dm_nfnet_f0", 16)
res2net = timm_case("res2net50_26w_4s", 32)
resnest = timm_case("resnest50d", 32)
dla = timm_case("dla34", 32)
hrnet = timm_case("hrnet_w18_small", 32)
vovnet = timm_case("ese_vovnet19b_dw", 64)
mixnet = timm_case("tf_mixnet_s", 64)
fastvit = timm_case("fastvit_t8", 32)
davit = timm_case("davit_tiny", 32)
caformer = timm_case("caformer_s18", 32)
mobileone = timm_case("mobileone_s1", 64)


# --- text, sound and series -----------------------------------------------------------------------


def language_model(kind: str, batch: int, length: int, **sizes: Any) -> Builder:
    """`{kind}ForCausalLM` of transformers with its loss."""

    def build(small: bool) -> Case:
        import transformers

        config = getattr(transformers, f"{kind}Config")(vocab_size=32000, **sizes)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        rows, columns = (1, 32) if small else (batch, length)
        ids = token_ids(rows, columns, 32000)
        return Case(model, {"input_ids": ids, "labels": ids.clone(), "use_cache": False}, own_loss)

    return build


phi3 = language_model(
    "Phi3", 4, 512, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6,
    num_attention_heads=16, num_key_value_heads=16, pad_token_id=0,
)  # fmt: skip
falcon = language_model(
    "Falcon", 4, 512, hidden_size=1024, num_hidden_layers=6, num_attention_heads=16
)
gptj = language_model("GPTJ", 4, 512, n_embd=1024, n_layer=6, n_head=16, rotary_dim=32)
mamba = language_model("Mamba", 2, 64, hidden_size=512, num_hidden_layers=4)
qwen3_moe = language_model(
    "Qwen3Moe", 4, 128, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4,
    num_attention_heads=16, num_key_value_heads=4, moe_intermediate_size=512, num_experts=8,
    num_experts_per_tok=2,
)  # fmt: skip
deepseek_v3 = language_model(
    "DeepseekV3", 4, 256, hidden_size=1024, intermediate_size=2048, moe_intermediate_size=512,
    num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, n_routed_experts=8,
    n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1,
)  # fmt: skip
olmo2 = language_model(
    "Olmo2", 4, 512, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6,
    num_attention_heads=16,
)  # fmt: skip


def electra(small: bool) -> Case:
    """ELECTRA's discriminator, of embeddings narrower than the layers."""
    from transformers import ElectraConfig, ElectraModel

    config = ElectraConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Case(
        ElectraModel(config), {"input_ids": token_ids(2 if small else 16, 128, 30522)}, mean_square
    )


def hubert(small: bool) -> Case:
    """HuBERT: convolutions over a wave, then a transformer with a convolution as positions."""
    from transformers import HubertConfig, HubertModel

    config = HubertConfig(
        num_hidden_layers=1 if small else 6, hidden_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0,
    )  # fmt: skip
    wave = torch.randn(1 if small else 4, 4000 if small else 32000)
    return Case(HubertModel(config), {"input_values": wave}, mean_square)


def patch_tst(small: bool) -> Case:
    """PatchTST: patches of many series, batch norms between attention."""
    from transformers import PatchTSTConfig, PatchTSTModel

    config = PatchTSTConfig(
        num_input_channels=7, context_length=512, patch_length=16, patch_stride=8, d_model=128,
        num_attention_heads=8, ffn_dim=256, num_hidden_layers=3, attention_dropout=0.0,
        ff_dropout=0.0, path_dropout=0.0,
    )  # fmt: skip
    values = torch.randn(2 if small else 64, 512, 7)
    return Case(PatchTSTModel(config), {"past_values": values}, mean_square)


def dinov2(small: bool) -> Case:
    """DINOv2-S with layer scales."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_hidden_layers=1 if small else 12
    )
    pixels = torch.randn(1 if small else 32, 3, 224, 224)
    return Case(Dinov2Model(config), {"pixel_values": pixels}, mean_square)
