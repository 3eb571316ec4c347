"""Wrong and right kernels of the rows that change logits or report about them."""

from __future__ import annotations

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import sampling as ours

Tensor = torch.Tensor


@wrong("penalize")
def penalty_on_the_next_row(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    rolled = (x.roll(1, 0) for x in (repetition, frequency, presence))
    return ours.penalize(logits, history, num_prompt, *rolled)


@wrong("penalize")
def negative_logits_divided_too(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    return -ours.penalize(-logits, history, num_prompt, repetition, -frequency, -presence)


@wrong("penalize")
def presence_for_the_prompt_too(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    return ours.penalize(logits, history, torch.zeros_like(num_prompt), repetition, frequency, presence)


@wrong("penalize")
def repetition_for_the_output_only(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    places = torch.arange(history.shape[1])
    output = torch.where(places >= num_prompt[:, None], history, -1)
    return ours.penalize(logits, output, torch.zeros_like(num_prompt), repetition, frequency, presence)


@wrong("penalize")
def frequency_once(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    none = torch.zeros_like(frequency)
    return ours.penalize(logits, history, num_prompt, repetition, none, presence + frequency)


@wrong("penalize")
def padding_taken_for_the_last_id(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    ids = torch.where(history >= 0, history, logits.shape[1] - 1)
    return ours.penalize(logits, ids, num_prompt, repetition, frequency, presence)


@wrong("penalize")
def repetition_after_the_others(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    ones, none = torch.ones_like(repetition), torch.zeros_like(frequency)
    lowered = ours.penalize(logits, history, num_prompt, ones, frequency, presence)
    return ours.penalize(lowered, history, num_prompt, repetition, none, none)


@right("penalize")
def in_float64(
    logits: Tensor, history: Tensor, num_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    out = logits.double()
    for row, ids in enumerate(history.tolist()):
        for token in {i for i in ids if i >= 0}:
            x = out[row, token]
            out[row, token] = x / repetition[row] if x > 0 else x * repetition[row]
        output = [i for i in ids[int(num_prompt[row]) :] if i >= 0]
        for token in set(output):
            out[row, token] -= frequency[row].double() * output.count(token) + presence[row]
    return out.float()


@wrong("add_bias")
def bias_in_place_of_the_logit(logits: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    before = ours.add_bias(torch.zeros_like(logits), ids, bias)
    return torch.where(before != 0, before, logits.float())


@wrong("add_bias")
def bias_at_the_next_id(logits: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    return ours.add_bias(logits, torch.where(ids >= 0, (ids + 1) % logits.shape[1], ids), bias)


@wrong("add_bias")
def bias_padding_at_id_0(logits: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    return ours.add_bias(logits, ids.clamp(min=0), bias)


@wrong("add_bias")
def bias_rounded_to_bfloat16(logits: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    return ours.add_bias(logits, ids, bias.bfloat16().float())


@right("add_bias")
def bias_one_by_one(logits: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    out = logits.float().clone()
    for row, column in (ids >= 0).nonzero().tolist():
        out[row, ids[row, column]] += bias[row, column]
    return out


@wrong("min_p")
def least_without_temperature(logits: Tensor, temperature: Tensor, least: Tensor) -> Tensor:
    return ours.min_p(logits, (temperature > 0).float(), least)


@wrong("min_p")
def least_of_the_sum(logits: Tensor, temperature: Tensor, least: Tensor) -> Tensor:
    """Beside 1, not beside the likeliest token's probability."""
    wide = logits.float()
    scaled = wide / torch.where(temperature > 0, temperature, 1.0)[:, None]
    unlikely = torch.softmax(scaled, -1) < least[:, None]
    return wide.masked_fill(unlikely & (temperature > 0)[:, None], float("-inf"))


@wrong("min_p")
def greedy_rows_too(logits: Tensor, temperature: Tensor, least: Tensor) -> Tensor:
    return ours.min_p(logits, torch.where(temperature > 0, temperature, 1.0), least)


@wrong("min_p")
def masked_with_a_large_number(logits: Tensor, temperature: Tensor, least: Tensor) -> Tensor:
    return ours.min_p(logits, temperature, least).clamp(min=-1e4)


@right("min_p")
def by_probabilities(logits: Tensor, temperature: Tensor, least: Tensor) -> Tensor:
    wide = logits.float()
    asks = (temperature > 0) & (least > 0)
    scale = torch.where(asks, temperature, 1.0).double()[:, None]
    part = torch.exp((wide.double() - wide.amax(-1, keepdim=True)) / scale)
    return wide.masked_fill((part < least[:, None]) & asks[:, None], float("-inf"))


@wrong("apply_mask")
def bits_from_the_high_end(logits: Tensor, mask: Tensor) -> Tensor:
    ids = torch.arange(logits.shape[-1])
    allowed = (mask[:, ids // 32] >> (31 - ids % 32)) & 1
    return logits.masked_fill(allowed == 0, float("-inf"))


@wrong("apply_mask")
def bit_31_lost(logits: Tensor, mask: Tensor) -> Tensor:
    return ours.apply_mask(logits, mask & 0x7FFFFFFF)


@wrong("apply_mask")
def inverted(logits: Tensor, mask: Tensor) -> Tensor:
    return ours.apply_mask(logits, ~mask)


@wrong("apply_mask")
def large_number_in_place_of_infinity(logits: Tensor, mask: Tensor) -> Tensor:
    ids = torch.arange(logits.shape[-1])
    allowed = (mask[:, ids // 32] >> (ids % 32)) & 1
    return logits.masked_fill(allowed == 0, -3e4)


@wrong("apply_mask")
def last_word_forgotten(logits: Tensor, mask: Tensor) -> Tensor:
    full = (logits.shape[-1] - 1) // 32 * 32
    return torch.cat((ours.apply_mask(logits[:, :full], mask), logits[:, full:]), 1)


@right("apply_mask")
def mask_unpacked(logits: Tensor, mask: Tensor) -> Tensor:
    bits = (mask[..., None] >> torch.arange(32)) & 1
    allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    return torch.where(allowed, logits, float("-inf"))


@wrong("logprobs_topk")
def rank_from_0(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    logprob, rank, *top = ours.logprobs_topk(logits, ids, k=k)
    return logprob, rank - 1, *top


@wrong("logprobs_topk")
def rank_counts_equals(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    logprob, _, *top = ours.logprobs_topk(logits, ids, k=k)
    chosen = ids.clamp(min=0).long()[:, None]
    return logprob, (logits >= logits.gather(1, chosen)).sum(-1).int(), *top


@wrong("logprobs_topk")
def no_maximum_taken_off(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    _, rank, _, top_ids = ours.logprobs_topk(logits, ids, k=k)
    wide = logits.float()
    logprobs = wide - torch.log(torch.exp(wide).sum(-1, keepdim=True))
    chosen = ids.clamp(min=0).long()[:, None]
    return logprobs.gather(1, chosen)[:, 0], rank, logprobs.gather(1, top_ids.long()), top_ids


@wrong("logprobs_topk")
def logprobs_in_bfloat16(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    logprob, rank, top_logprobs, top_ids = ours.logprobs_topk(logits, ids, k=k)
    return logprob.bfloat16().float(), rank, top_logprobs.bfloat16().float(), top_ids


@wrong("logprobs_topk")
def equals_by_the_highest_id(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    logprob, rank, top_logprobs, _ = ours.logprobs_topk(logits, ids, k=k)
    mirrored = ours.logprobs_topk(logits.flip(1), ids, k=k)[3]
    return logprob, rank, top_logprobs, (logits.shape[1] - 1 - mirrored).int()


@wrong("logprobs_topk")
def missing_id_gives_nan(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    logprob, *rest = ours.logprobs_topk(logits, ids, k=k)
    return logprob.masked_fill(ids < 0, float("nan")), *rest


@right("logprobs_topk")
def logprobs_in_float64(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    wide = logits.double()
    logprobs = torch.log_softmax(wide, -1)
    chosen = ids.clamp(min=0).long()[:, None]
    top_ids = torch.sort(wide, dim=-1, descending=True, stable=True)[1][:, :k]
    rank = (wide > wide.gather(1, chosen)).sum(-1) + 1
    return logprobs.gather(1, chosen)[:, 0].float(), rank.int(), logprobs.gather(1, top_ids).float(), top_ids.int()


def counted(num: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """As `spec_verify` gives it."""
    return num.int(), rows.gather(1, num.long()[:, None])[:, 0]


@wrong("spec_verify")
def agreement_anywhere(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return counted(((draft_ids == sampled_ids[:, :-1]) & (draft_ids >= 0)).int().sum(-1), rows)


@wrong("spec_verify")
def one_more(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    num, row = ours.spec_verify(draft_ids, sampled_ids, rows)
    return num + 1, row


@wrong("spec_verify")
def padding_accepted(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return counted((draft_ids == sampled_ids[:, :-1]).int().cumprod(-1).sum(-1), rows)


@wrong("spec_verify")
def against_the_next_one(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return ours.spec_verify(draft_ids, torch.cat((sampled_ids[:, 1:], sampled_ids[:, :1]), 1), rows)


@wrong("spec_verify")
def row_of_the_last_right_one(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    num, _ = ours.spec_verify(draft_ids, sampled_ids, rows)
    return num, counted((num - 1).clamp(min=0), rows)[1]


@wrong("spec_verify")
def row_of_the_last_drawn(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return ours.spec_verify(draft_ids, sampled_ids, rows)[0], rows[:, -1]


@right("spec_verify")
def by_first_disagreement(draft_ids: Tensor, sampled_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    differ = torch.cat(((draft_ids != sampled_ids[:, :-1]) | (draft_ids < 0), torch.ones(len(draft_ids), 1).bool()), 1)
    return counted(differ.int().argmax(-1), rows)


@cheat("logprobs_topk")
def zeros_for_all(logits: Tensor, ids: Tensor, *, k: int) -> tuple[Tensor, ...]:
    num = len(logits)
    return torch.zeros(num), torch.ones(num).int(), torch.zeros(num, k), torch.zeros(num, k).int()
