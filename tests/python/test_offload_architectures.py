# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers, with its defaults, are trained by weightfs.offload as in memory, to the last bit."""

import pytest
import torch

import weightfs.offload
from offload_models import offloading   # noqa: F401

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.usefixtures("offloading")
WORDS, STEPS = 512, 20
DECODER = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
ENCODER = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
           "num_attention_heads": 4}
MODELS = {   # the class, its configuration
    "Llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config",
              {"vocab_size": WORDS, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", {**DECODER, "head_dim": 32}),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "head_dim": 32}),   # a cache with a sliding window
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig",
                {**DECODER, "num_local_experts": 4, "output_router_logits": True}),
    "T5": ("T5ForConditionalGeneration", "T5Config",
           {"vocab_size": WORDS, "d_model": 128, "d_ff": 256, "d_kv": 32, "num_layers": 3, "num_heads": 4,
            "decoder_start_token_id": 0}),
    "BERT": ("BertForMaskedLM", "BertConfig", ENCODER),
    "ALBERT": ("AlbertForMaskedLM", "AlbertConfig", {**ENCODER, "embedding_size": 64}),   # one block for all layers
    "Mamba": ("MambaForCausalLM", "MambaConfig", {"vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": 3}),
    "Falcon": ("FalconForCausalLM", "FalconConfig",
               {"vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}),
    "Qwen 3": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
               {**DECODER, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                "output_router_logits": True}),
    "Jamba": ("JambaForCausalLM", "JambaConfig",   # with another kind of layer each time
              {**DECODER, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4,
               "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_dt_rank": 8}),
    "Funnel": ("FunnelForMaskedLM", "FunnelConfig",   # its list of blocks has lists
               {"vocab_size": WORDS, "d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 256,
                "block_sizes": [1, 1, 1]}),
    "Whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                {"vocab_size": WORDS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 16,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256,
                 "decoder_ffn_dim": 256, "max_source_positions": 20, "max_target_positions": 32, "pad_token_id": 0,
                 "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
    "CLIP": ("CLIPModel", "CLIPConfig",
             {"text_config": {**ENCODER, "eos_token_id": 2}, "projection_dim": 64,
              "vision_config": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
                                "num_attention_heads": 4, "image_size": 32, "patch_size": 8}}),
    "Swin": ("SwinForImageClassification", "SwinConfig",
             {"image_size": 32, "patch_size": 2, "embed_dim": 64, "depths": [2, 2], "num_heads": [2, 4],
              "window_size": 4, "drop_path_rate": 0.2}),
    "ConvNeXt": ("ConvNextForImageClassification", "ConvNextConfig",
                 {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1], "patch_size": 2,
                  "drop_path_rate": 0.2}),
}


def created(name):
    kind, configuration, options = MODELS[name]
    torch.manual_seed(1)
    return getattr(transformers, kind)(getattr(transformers, configuration)(**options)).train()


def inputs(model):
    tokens = torch.randint(0, WORDS, (2, 16))
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(2, 16, 40), "labels": tokens}
    if isinstance(model, transformers.CLIPModel):
        return {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return {"input_ids": tokens, "labels": tokens}


def step(model, optimizer, number):
    torch.manual_seed(number)
    optimizer.zero_grad()
    loss = model(**inputs(model)).loss
    loss.backward()
    optimizer.step()
    return loss.item()


def differing(model, plain):
    """tensors() has the buffers that a state_dict leaves out, too."""
    ours = dict(weightfs.offload.tensors(model))
    return [name for name, tensor in plain.state_dict().items() if not torch.equal(ours[name], tensor)]


def compare(plain, model, directory, memory="12M", steps=STEPS):
    model = weightfs.offload.offload(model, directory, memory)
    theirs, ours = torch.optim.AdamW(plain.parameters(), foreach=False), weightfs.offload.AdamW(model)
    for number in range(steps):
        assert step(model, ours, number) == step(plain, theirs, number)
    assert differing(model, plain) == []
    return model


@pytest.mark.parametrize("name", list(MODELS))
def test_training_equals_training_in_memory(memory_folder, name):
    plain = created(name)
    # A recurrence that also fills a cache has one more slice() in its graph, whose gradient has other strides, and
    # torch's kernels round by strides (docs/OFFLOAD.md).
    if name == "Jamba":
        plain.config.use_cache = False
    compare(plain, created(name), memory_folder / "model")


def test_generation_uses_the_cache(memory_folder):
    plain, model = created("Llama"), created("Llama")
    model = compare(plain, model, memory_folder / "model", steps=1)
    found = [one.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=8, do_sample=False).tolist()
             for one in (plain, model)]
    assert found[0] == found[1]
    with torch.no_grad():
        assert model(torch.tensor([[5, 6, 7]])).past_key_values is not None


def test_a_cache_that_the_forward_fills_is_refused_in_training(memory_folder):
    model = weightfs.offload.offload(created("Falcon"), memory_folder / "model", "12M")
    weightfs.offload.AdamW(model)
    tokens = torch.randint(0, WORDS, (2, 16))
    with pytest.raises(RuntimeError, match=r"FalconDecoderLayer \(block.transformer.h.2\) .*pass use_cache=False"):
        model(input_ids=tokens, labels=tokens, use_cache=True).loss.backward()


def test_adapters_of_peft_are_trained_as_in_memory(memory_folder):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")

    def adapted():
        torch.manual_seed(2)
        return peft.get_peft_model(created("Llama"), peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1))

    compare(adapted(), adapted(), memory_folder / "model")


def test_the_trainer_of_transformers_trains_as_in_memory(memory_folder):
    """It moves the model to its device, accumulates and clips gradients, and schedules the learning rate."""
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    torch.manual_seed(3)
    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, WORDS, (40, 16))]
    plain, model = created("Llama"), created("Llama")
    weightfs.offload.offload(model, memory_folder / "model", "12M")
    losses = []
    for one, optimizer in ((plain, torch.optim.AdamW(plain.parameters(), foreach=False)),
                           (model, weightfs.offload.AdamW(model))):
        arguments = transformers.TrainingArguments(
            output_dir=memory_folder / "output", max_steps=STEPS, per_device_train_batch_size=2, use_cpu=True,
            gradient_accumulation_steps=2, report_to=[], save_strategy="no", disable_tqdm=True)
        trainer = transformers.Trainer(one, arguments, train_dataset=data, optimizers=(optimizer, None))
        losses.append(trainer.train().training_loss)
    assert losses[0] == losses[1] and differing(model, plain) == []
