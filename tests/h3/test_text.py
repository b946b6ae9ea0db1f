import pytest
import torch
from transformers import Qwen3VLModel

from h3.text import load_text_encoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder(tiny):
    return load_text_encoder(tiny.text_encoder, tiny.tokenizer, CPU)


@torch.inference_mode()
def test_states_are_those_inside_the_stack_and_before_the_final_norm(tiny, encoder):
    ids = encoder.tokenize("a red kite")
    whole = Qwen3VLModel.from_pretrained(tiny.text_encoder, dtype=torch.bfloat16).eval()
    inside = whole.language_model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[2][0]
    assert torch.equal(encoder.encode(ids), inside)


def test_the_prompt_is_tokenised_as_it_stands(encoder):
    assert len(encoder.tokenize("a red kite")) == len("a red kite")
    assert len(encoder.tokenize("☂")) == len("☂".encode())


def test_special_tokens_are_one_token(encoder):
    assert len(encoder.tokenize("<|image_pad|>")) == 1
