"""Models of the `transformers` package: small configurations, weights as their initializers leave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from torch_zoo.case import EQUAL_VALUES, Case, Example, images, ints

VOCABULARY, TIME, WIDTH = 20, 6, 8
PADDING = 1


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


class CachingDecoder(Decoder):
    """The same as its user calls it who thinks of nothing: with a cache."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


class Encoder(Decoder):
    """Tokens of which some are padding, to logits."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class Whole(Decoder):
    """The outputs as the model gives them, a dictionary of its own kind."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


class Translator(Decoder):
    """Both sides' tokens to a loss."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model(input_ids=source, labels=target, use_cache=False).loss


class Vision(Decoder):
    """Images to logits."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values=pixel_values).logits


def _made(
    wrapper: type[nn.Module], model: str, config: str, *, experts: str = "", **options: Any
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        configured = getattr(transformers, f"{config}Config")(**options)
        made = getattr(transformers, model)(configured).train()
        if experts:
            made.set_experts_implementation(experts)
        return wrapper(made)

    return make


_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 16, "pad_token_id": PADDING, "bos_token_id": 2,
    "eos_token_id": 3,
}  # fmt: skip
_EAGER = {"attn_implementation": "eager"}
_GROUPED = {**_SIZES, **_EAGER, "num_key_value_heads": 1, "head_dim": 4}
_IMAGE = {
    "hidden_size": WIDTH, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "num_labels": 3, **_EAGER,
}  # fmt: skip


def _padded() -> Example:
    tokens = torch.randint(4, VOCABULARY, (3, TIME))
    tokens[1, 4:] = tokens[2, 5:] = PADDING
    return {"input_ids": tokens, "attention_mask": (tokens != PADDING).long()}


def _two() -> Example:
    return torch.randint(4, VOCABULARY, (3, TIME)), torch.randint(4, VOCABULARY, (3, TIME))


_STATIC = {"dynamic": False}
"""Of models that take the exporter long where the batch is of any size."""
_TOKENS = ints(VOCABULARY, 3, TIME)
_IMAGES = images()
_LM = ("tied weights", "integer inputs", "logits", "Dropout")
_SINGLE = {"dtype": torch.float32}
"""Of models that compute norms or angles in float32 whatever their parameters are."""

CASES = (
    Case(
        "GPT-2",
        "decoder",
        _made(
            Decoder,
            "GPT2LMHeadModel",
            "GPT2",
            vocab_size=VOCABULARY,
            n_embd=WIDTH,
            n_layer=1,
            n_head=2,
            n_positions=16,
            **_EAGER,
        ),
        _TOKENS,
        traps=(*_LM, EQUAL_VALUES),
        further=True,
    ),
    Case(
        "GPT-2, default attention and cache",
        "decoder",
        _made(
            CachingDecoder,
            "GPT2LMHeadModel",
            "GPT2",
            vocab_size=VOCABULARY,
            n_embd=WIDTH,
            n_layer=1,
            n_head=2,
            n_positions=16,
        ),
        _TOKENS,
        traps=("default attention", "tied weights"),
        further=True,
    ),
    Case(
        "GPT-NeoX",
        "decoder",
        _made(Decoder, "GPTNeoXForCausalLM", "GPTNeoX", **_SIZES, **_EAGER),
        _TOKENS,
        traps=("logits",),
        **_SINGLE,
        further=True,
    ),
    Case(
        "OPT",
        "decoder",
        _made(Decoder, "OPTForCausalLM", "OPT", **_SIZES, **_EAGER, ffn_dim=12, word_embed_proj_dim=WIDTH),
        _TOKENS,
        traps=("padding_idx", "tied weights", "Dropout"),
        further=True,
    ),
    Case(
        "Llama, default attention and cache",
        "decoder",
        _made(CachingDecoder, "LlamaForCausalLM", "Llama", **_SIZES, num_key_value_heads=1),
        _TOKENS,
        traps=("default attention",),
        **_SINGLE,
    ),
    Case(
        "Mistral",
        "decoder",
        _made(Decoder, "MistralForCausalLM", "Mistral", **_GROUPED, sliding_window=4),
        _TOKENS,
        traps=("logits",),
        **_SINGLE,
        further=True,
    ),
    Case(
        "Qwen2",
        "decoder",
        _made(Decoder, "Qwen2ForCausalLM", "Qwen2", **_GROUPED),
        _TOKENS,
        traps=("logits",),
        **_SINGLE,
        further=True,
    ),
    Case(
        "Gemma",
        "decoder",
        _made(Decoder, "GemmaForCausalLM", "Gemma", **_GROUPED),
        _TOKENS,
        traps=("tied weights", "logits"),
        further=True,
        **_SINGLE,
    ),
    Case(
        "Mixtral",
        "mixture of experts",
        _made(Decoder, "MixtralForCausalLM", "Mixtral", **_GROUPED, num_local_experts=3, num_experts_per_tok=2),
        _TOKENS,
        r"set_experts_implementation",
        traps=("data-dependent",),
        **_SINGLE,
        further=True,
    ),
    Case(
        "Mixtral, batched experts",
        "mixture of experts",
        _made(
            Decoder,
            "MixtralForCausalLM",
            "Mixtral",
            **_GROUPED,
            experts="batched_mm",
            num_local_experts=3,
            num_experts_per_tok=2,
        ),
        _TOKENS,
        further=True,
        **_SINGLE,
    ),
    Case(
        "Mamba",
        "state space",
        _made(
            Decoder,
            "MambaForCausalLM",
            "Mamba",
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            state_size=3,
            num_hidden_layers=1,
            time_step_rank=2,
        ),
        _TOKENS,
        traps=("tied weights",),
        further=True,
        **_SINGLE,
    ),
    Case(
        "BERT",
        "encoder",
        _made(Encoder, "BertForMaskedLM", "Bert", **_SIZES, **_EAGER),
        _padded,
        traps=("dict example", "padding_idx", "tied weights", "Dropout", EQUAL_VALUES),
        further=True,
    ),
    Case(
        "RoBERTa",
        "encoder",
        _made(Whole, "RobertaModel", "Roberta", **_SIZES, **_EAGER),
        _padded,
        traps=("dict output", "several outputs", "padding_idx"),
        further=True,
    ),
    Case(
        "DistilBERT",
        "encoder",
        _made(
            Encoder,
            "DistilBertForSequenceClassification",
            "DistilBert",
            vocab_size=VOCABULARY,
            dim=WIDTH,
            n_layers=1,
            n_heads=2,
            hidden_dim=12,
            max_position_embeddings=16,
            pad_token_id=PADDING,
            num_labels=3,
            **_EAGER,
        ),
        _padded,
        traps=("padding_idx", "Dropout"),
        further=True,
    ),
    Case(
        "ELECTRA",
        "encoder",
        _made(Encoder, "ElectraForPreTraining", "Electra", **_SIZES, **_EAGER, embedding_size=6),
        _padded,
        traps=("padding_idx", "Dropout"),
        further=True,
    ),
    Case(
        "DeBERTa",
        "encoder",
        _made(
            Encoder,
            "DebertaV2ForSequenceClassification",
            "DebertaV2",
            **_SIZES,
            **_EAGER,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=4,
        ),
        _padded,
        traps=("padding_idx", "Dropout"),
        options=_STATIC,
        further=True,
        **_SINGLE,
    ),
    Case(
        "DeBERTa, in float64",
        "encoder",
        _made(
            Encoder,
            "DebertaV2ForSequenceClassification",
            "DebertaV2",
            **_SIZES,
            **_EAGER,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=4,
        ),
        _padded,
        r"deberta.*differs from PyTorch",
        traps=("padding_idx", "Dropout"),
        options=_STATIC,
        further=True,
    ),
    Case(
        "T5",
        "encoder and decoder",
        _made(
            Translator,
            "T5ForConditionalGeneration",
            "T5",
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=4,
            d_ff=12,
            num_layers=1,
            num_heads=2,
            relative_attention_num_buckets=4,
            pad_token_id=PADDING,
            decoder_start_token_id=PADDING,
            **_EAGER,
        ),
        _two,
        traps=("scalar loss", "tied weights", "Dropout"),
        options=_STATIC,
        **_SINGLE,
    ),
    Case(
        "BART",
        "encoder and decoder",
        _made(
            Translator,
            "BartForConditionalGeneration",
            "Bart",
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_ffn_dim=12,
            max_position_embeddings=16,
            pad_token_id=PADDING,
            **_EAGER,
        ),
        _two,
        traps=("scalar loss", "tied weights", "padding_idx", "Dropout"),
        further=True,
        options=_STATIC,
    ),
    Case(
        "ViT",
        "vision transformer",
        _made(Vision, "ViTForImageClassification", "ViT", **_IMAGE),
        _IMAGES,
        traps=("Dropout", EQUAL_VALUES),
        further=True,
    ),
    Case(
        "DeiT",
        "vision transformer",
        _made(Vision, "DeiTForImageClassification", "DeiT", **_IMAGE),
        _IMAGES,
        traps=("logits",),
        further=True,
    ),
    Case(
        "BEiT",
        "vision transformer",
        _made(
            Vision, "BeitForImageClassification", "Beit", **_IMAGE, drop_path_rate=0.25, use_relative_position_bias=True
        ),
        _IMAGES,
        traps=("DropPath",),
        further=True,
        options=_STATIC,
    ),
    Case(
        "Swin",
        "vision transformer",
        _made(
            Vision,
            "SwinForImageClassification",
            "Swin",
            image_size=8,
            patch_size=2,
            embed_dim=4,
            depths=[1, 2],
            num_heads=[1, 2],
            window_size=2,
            drop_path_rate=0.25,
            num_labels=3,
            **_EAGER,
        ),
        _IMAGES,
        traps=("DropPath",),
        options=_STATIC,
        further=True,
    ),
    Case(
        "ConvNeXt of transformers",
        "ConvNeXt",
        _made(
            Vision,
            "ConvNextForImageClassification",
            "ConvNext",
            num_channels=3,
            patch_size=2,
            hidden_sizes=[4, 6],
            depths=[1, 1],
            num_stages=2,
            drop_path_rate=0.25,
            num_labels=3,
        ),
        _IMAGES,
        traps=("DropPath",),
        further=True,
    ),
)
