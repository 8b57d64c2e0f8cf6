"""Rows in the shapes of public data sets and of other tools. Their columns are real, and their texts
are made up.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from launch.config.kinds import Kind

Row = dict[str, Any]
ASKED = "Where is the blue boat?"
ANSWERED = "It lies in the harbour."
WORSE = "No idea at all."
BRIEF = "Answer in one line."
EARLIER = ("Is it Monday?", "Yes, since midnight.")
THOUGHT = "Boats lie in harbours."
RESULT = '{"metres": 12}'


class Shape(NamedTuple):
    """A row, and what it becomes: `learned` carries loss, `read` is in the prompt."""

    name: str
    row: Row
    learned: tuple[str, ...] = (ANSWERED,)
    read: tuple[str, ...] = (ASKED,)
    kind: Kind = Kind.sft
    format: str = "chat"
    needs: str = ""  # what a template has to render: tools, reasoning
    unused: tuple[str, ...] = ()  # the columns that are named


def turn(role: str, content: str | None, **more: object) -> Row:
    return {"role": role, "content": content, **more}


def said(who: str, value: str, **more: object) -> Row:
    return {"from": who, "value": value, **more}


def definition(name: str, **properties: str) -> Row:
    parameters = {
        "type": "object",
        "properties": {
            key: {"type": "string", "description": text} for key, text in properties.items()
        },
        "required": list(properties),
    }
    return {"name": name, "description": f"Runs {name}.", "parameters": parameters}


CHAT = [turn("user", ASKED), turn("assistant", ANSWERED)]
WORSE_CHAT = [turn("user", ASKED), turn("assistant", WORSE)]
SHAREGPT = [said("human", ASKED), said("gpt", ANSWERED)]
MEASURE = definition("measure", boat="Its colour.")
CALL = {"name": "measure", "arguments": {"boat": "blue"}}
CALLED = ("measure", "blue", ANSWERED)
CALLS = "tools"
TRANSCRIPT = f"\n\nHuman: {EARLIER[0]}\n\nAssistant: {EARLIER[1]}\n\nHuman: {ASKED}\n\nAssistant:"
OPENAI_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "measure", "arguments": json.dumps(CALL["arguments"])},
}

SFT = (
    Shape(
        "Tulu 3 mixture",
        {"id": "a1", "messages": CHAT, "source": "made/up"},
        unused=("id", "source"),
    ),
    Shape(
        "Dolci instruct",
        {
            "id": "a2",
            "messages": [
                turn("system", BRIEF, functions=json.dumps([MEASURE]), function_calls=None),
                turn("user", ASKED, functions=None, function_calls=None),
                turn("assistant", None, functions=None, function_calls='measure(boat="blue")'),
                turn("environment", RESULT, functions=None, function_calls=None),
                turn("assistant", ANSWERED, functions=None, function_calls=None),
            ],
            "dataset_source": "made/up",
        },
        learned=('measure(boat="blue")', ANSWERED),
        read=(ASKED, RESULT, "Runs measure."),
        needs="functions",
        unused=("id", "dataset_source"),
    ),
    Shape(
        "OpenThoughts",
        {"system": BRIEF, "conversations": [said("user", ASKED), said("assistant", ANSWERED)]},
        read=(BRIEF, ASKED),
        format="sharegpt",
    ),
    Shape(
        "OpenThoughts 3",
        {"difficulty": 3, "source": "web", "domain": "sea", "conversations": SHAREGPT},
        format="sharegpt",
        unused=("source", "domain", "difficulty"),
    ),
    Shape(
        "Llama Nemotron",
        {
            "input": [turn("user", ASKED)],
            "output": ANSWERED,
            "category": "chat",
            "reasoning": "off",
            "system_prompt": BRIEF,
        },
        read=(BRIEF, ASKED),
        format="prompt_completion",
        unused=("category", "reasoning"),
    ),
    Shape(
        "Nemotron post-training",
        {
            "uuid": "a3",
            "reasoning": "on",
            "messages": [
                turn("user", ASKED, tool_calls=[]),
                turn("assistant", "", tool_calls=[OPENAI_CALL]),
                turn("tool", RESULT, tool_calls=[]),
                turn("assistant", ANSWERED, tool_calls=[]),
            ],
            "tools": [{"type": "function", "function": MEASURE}],
        },
        learned=CALLED,
        read=(ASKED, RESULT, "Runs measure."),
        needs=CALLS,
        unused=("uuid", "reasoning"),
    ),
    Shape(
        "reasoning_content",
        {"messages": [turn("user", ASKED), turn("assistant", ANSWERED, reasoning_content=THOUGHT)]},
        learned=(THOUGHT, ANSWERED),
        needs="reasoning",
    ),
    Shape(
        "thinking",
        {
            "reasoning_language": "English",
            "messages": [
                turn("user", ASKED, thinking=None),
                turn("assistant", ANSWERED, thinking=THOUGHT),
            ],
        },
        learned=(THOUGHT, ANSWERED),
        needs="reasoning",
        unused=("reasoning_language",),
    ),
    Shape(
        "ShareGPT with calls, tools as text",
        {
            "conversations": [
                said("human", ASKED),
                said("function_call", json.dumps(CALL)),
                said("observation", RESULT),
                said("gpt", ANSWERED),
            ],
            "system": BRIEF,
            "tools": json.dumps([MEASURE]),
        },
        learned=CALLED,
        read=(BRIEF, ASKED, RESULT, "Runs measure."),
        format="sharegpt",
        needs=CALLS,
    ),
    Shape(
        "ShareGPT with calls, tools as a list",
        {
            "conversations": [
                said("human", ASKED),
                said("function_call", json.dumps([CALL])),
                said("observation", RESULT),
                said("gpt", ANSWERED),
            ],
            "tools": [MEASURE],
        },
        learned=CALLED,
        read=(ASKED, RESULT, "Runs measure."),
        format="sharegpt",
        needs=CALLS,
    ),
    Shape(
        "swift's agent rows",
        {
            "tools": json.dumps([{"type": "function", "function": MEASURE}]),
            "messages": [
                turn("user", ASKED),
                turn("tool_call", json.dumps(CALL)),
                turn("tool_response", RESULT),
                turn("assistant", ANSWERED),
            ],
        },
        learned=CALLED,
        read=(ASKED, RESULT, "Runs measure."),
        needs=CALLS,
    ),
    Shape(
        "OpenAI's old function_call",
        {
            "messages": [
                turn("user", ASKED),
                turn("assistant", None, function_call=OPENAI_CALL["function"]),
                turn("function", RESULT, name="measure"),
                turn("assistant", ANSWERED),
            ],
            "functions": [MEASURE],
        },
        learned=CALLED,
        read=(ASKED, RESULT, "Runs measure."),
        needs=CALLS,
    ),
    Shape(
        "Alpaca with history",
        {
            "instruction": ASKED,
            "input": "",
            "output": ANSWERED,
            "system": BRIEF,
            "history": [list(EARLIER)],
        },
        learned=(EARLIER[1], ANSWERED),
        read=(BRIEF, EARLIER[0], ASKED),
        format="alpaca",
    ),
    Shape(
        "swift's query and response",
        {"system": BRIEF, "query": ASKED, "response": ANSWERED, "history": [list(EARLIER)]},
        learned=(EARLIER[1], ANSWERED),
        read=(BRIEF, EARLIER[0], ASKED),
        format="prompt_completion",
    ),
    Shape(
        "swift's conversation",
        {
            "system": BRIEF,
            "conversation": [
                dict(zip(("human", "assistant"), EARLIER, strict=True)),
                {"human": ASKED, "assistant": ANSWERED},
            ],
        },
        learned=(EARLIER[1], ANSWERED),
        read=(BRIEF, EARLIER[0], ASKED),
    ),
    Shape(
        "a system column beside messages",
        {"system": BRIEF, "messages": CHAT},
        read=(BRIEF, ASKED),
    ),
    Shape(
        "OpenOrca",
        {"id": "flan.1", "system_prompt": BRIEF, "question": ASKED, "response": ANSWERED},
        read=(BRIEF, ASKED),
        format="prompt_completion",
        unused=("id",),
    ),
    Shape(
        "UltraFeedback, for SFT",
        {"prompt": ASKED, "messages": CHAT, "chosen": CHAT, "rejected": WORSE_CHAT},
        unused=("rejected",),
    ),
    Shape(
        "a prompt that is a transcript",
        {"prompt": TRANSCRIPT, "response": f" {ANSWERED}"},
        learned=(EARLIER[1], ANSWERED),
        read=(EARLIER[0], ASKED),
        format="prompt_completion",
    ),
    Shape(
        "BELLE's instructions of several turns",
        {
            "instruction": f"Human:{EARLIER[0]}\nAssistant:{EARLIER[1]}\nHuman:{ASKED}\nAssistant:",
            "input": "",
            "output": ANSWERED,
        },
        learned=(EARLIER[1], ANSWERED),
        read=(EARLIER[0], ASKED),
        format="alpaca",
    ),
    Shape(
        "KTO, a good answer",
        {
            "prompt": [turn("user", ASKED)],
            "completion": [turn("assistant", ANSWERED)],
            "label": True,
        },
        format="prompt_completion",
    ),
)
PAIRS = (
    Shape(
        "UltraFeedback binarized",
        {
            "prompt": ASKED,
            "prompt_id": "a4",
            "chosen": CHAT,
            "rejected": WORSE_CHAT,
            "messages": CHAT,
            "score_chosen": 9.0,
            "score_rejected": 2.0,
        },
        unused=("prompt_id",),
    ),
    Shape(
        "UltraFeedback without a prompt",
        {"messages": CHAT, "chosen": CHAT, "rejected": WORSE_CHAT},
    ),
    Shape(
        "HH-RLHF",
        {"chosen": f"{TRANSCRIPT} {ANSWERED}", "rejected": f"{TRANSCRIPT} {WORSE}"},
        read=(*EARLIER, ASKED),
    ),
    Shape(
        "HH-RLHF with a prompt",
        {"prompt": TRANSCRIPT, "chosen": f" {ANSWERED}", "rejected": f" {WORSE}"},
        read=(*EARLIER, ASKED),
    ),
    Shape(
        "swift's rejected_response",
        {"messages": CHAT, "rejected_response": WORSE},
    ),
    Shape(
        "swift's query and two responses",
        {
            "system": BRIEF,
            "query": ASKED,
            "response": ANSWERED,
            "rejected_response": WORSE,
            "history": [list(EARLIER)],
        },
        read=(BRIEF, *EARLIER, ASKED),
    ),
    Shape(
        "swift's rejected_messages",
        {"system": BRIEF, "messages": CHAT, "rejected_messages": WORSE_CHAT},
        read=(BRIEF, ASKED),
    ),
    Shape(
        "LLaMA-Factory's sides with a conversation",
        {
            "conversations": [said("human", ASKED)],
            "system": BRIEF,
            "chosen": said("gpt", ANSWERED),
            "rejected": said("gpt", WORSE),
        },
        read=(BRIEF, ASKED),
    ),
    Shape(
        "LLaMA-Factory's Alpaca pairs",
        {
            "instruction": ASKED,
            "input": "",
            "chosen": ANSWERED,
            "rejected": WORSE,
            "history": [list(EARLIER)],
        },
        read=(*EARLIER, ASKED),
    ),
    Shape(
        "Orca pairs",
        {"system": BRIEF, "question": ASKED, "chosen": ANSWERED, "rejected": WORSE},
        read=(BRIEF, ASKED),
    ),
    Shape(
        "a prompt that is the last question of longer sides",
        {
            "prompt": ASKED,
            "chosen": [turn("user", EARLIER[0]), turn("assistant", EARLIER[1]), *CHAT],
            "rejected": [turn("user", EARLIER[0]), turn("assistant", EARLIER[1]), *WORSE_CHAT],
        },
        read=(*EARLIER, ASKED),
    ),
    Shape(
        "When2Call",
        {
            "messages": [turn("user", ASKED)],
            "chosen_response": turn("assistant", ANSWERED),
            "rejected_response": turn("assistant", WORSE),
        },
    ),
    Shape(
        "Tulu 3 preferences",
        {"id": "a5", "source": "made/up", "prompt": ASKED, "chosen": CHAT, "rejected": WORSE_CHAT},
        unused=("id", "source"),
    ),
)
PAIRS = tuple(shape._replace(kind=Kind.dpo, format="preference") for shape in PAIRS)
# Shapes whose conversion alone is tested: a trainer has nothing of its own to do with them.
FURTHER = (
    Shape(
        "Bedrock",
        {
            "schemaVersion": "bedrock-conversation-2024",
            "system": [{"text": BRIEF}],
            "messages": [
                {"role": "user", "content": [{"text": ASKED}]},
                {"role": "assistant", "content": [{"text": ANSWERED}]},
            ],
        },
        read=(BRIEF, ASKED),
        unused=("schemaVersion",),
    ),
    Shape(
        "Gemini's contents",
        {
            "systemInstruction": {"role": "system", "parts": [{"text": BRIEF}]},
            "contents": [
                {"role": "user", "parts": [{"text": ASKED}]},
                {"role": "model", "parts": [{"text": ANSWERED}]},
            ],
            "tools": [{"functionDeclarations": [MEASURE]}],
        },
        read=(BRIEF, ASKED, "Runs measure."),
    ),
    Shape(
        "a conversation as lists of its keys",
        {"conversations": {"from": ["human", "gpt"], "value": [ASKED, ANSWERED]}},
        format="chat",
    ),
    Shape("questions and answers in a text", {"conversation": f"Q: {ASKED}\nA: {ANSWERED}"}),
    Shape(
        "OpenAI's responses",
        {
            "input": [turn("user", ASKED)],
            "output": [
                {**turn("assistant", None), "content": [{"type": "output_text", "text": ANSWERED}]}
            ],
        },
        format="prompt_completion",
    ),
    Shape(
        "SQuAD with one answer",
        {"title": "Boats", "context": THOUGHT, "question": ASKED, "answer": ANSWERED},
        read=(THOUGHT, ASKED),
        format="prompt_completion",
        unused=("title",),
    ),
    Shape(
        "Cohere's roles",
        {"messages": [turn("System", BRIEF), turn("User", ASKED), turn("Chatbot", ANSWERED)]},
        read=(BRIEF, ASKED),
    ),
    Shape("a conversation in an object", {"conversation": {"messages": CHAT}}),
    Shape(
        "XTuner's turns",
        {
            "conversation": [
                {
                    "system": BRIEF,
                    "input": ASKED,
                    "output": ANSWERED,
                    "thinking": THOUGHT,
                    "output_with_loss": True,
                }
            ]
        },
        learned=(THOUGHT, ANSWERED),
        read=(BRIEF, ASKED),
    ),
    Shape(
        "a transcript with other speakers",
        {
            "prompt": f"User: {EARLIER[0]}\nAssistant: {EARLIER[1]}\nUser: {ASKED}\nAssistant:",
            "response": f" {ANSWERED}",
        },
        learned=(EARLIER[1], ANSWERED),
        read=(EARLIER[0], ASKED),
        format="prompt_completion",
    ),
    Shape(
        "a transcript in both columns",
        {
            "instruction": f"USER: {EARLIER[0]}",
            "output": f"ASSISTANT: {EARLIER[1]}\nUSER: {ASKED}\nASSISTANT: {ANSWERED}",
        },
        learned=(EARLIER[1], ANSWERED),
        read=(EARLIER[0], ASKED),
        format="alpaca",
    ),
    Shape("a conversation in a text", {"dialogue": f"User: {ASKED}\nAI: {ANSWERED}"}),
    Shape(
        "ShareGPT with columns of Alpaca",
        {"conversations": SHAREGPT, "input": "Boats are listed by colour.", "instruction": BRIEF},
        format="sharegpt",
        unused=("input", "instruction"),
    ),
    Shape(
        "lists where texts belong",
        {"prompt": ASKED, "input": [EARLIER[0]], "completion": ANSWERED, "thinking": [THOUGHT]},
        format="prompt_completion",
        unused=("input", "thinking"),
    ),
)
FURTHER_PAIRS = (
    Shape(
        "OpenAI's preferences",
        {
            "input": {
                "messages": [turn("user", ASKED)],
                "tools": [{"type": "function", "function": MEASURE}],
                "parallel_tool_calls": True,
            },
            "preferred_output": [turn("assistant", ANSWERED)],
            "non_preferred_output": [turn("assistant", WORSE)],
        },
        read=(ASKED, "Runs measure."),
        unused=("input.parallel_tool_calls",),
    ),
    Shape(
        "Chatbot Arena",
        {
            "model_a": "m1",
            "model_b": "m2",
            "winner": "model_b",
            "conversation_a": WORSE_CHAT,
            "conversation_b": CHAT,
        },
        unused=("model_a", "model_b"),
    ),
    Shape(
        "PKU-SafeRLHF",
        {
            "prompt": ASKED,
            "response_0": WORSE,
            "response_1": ANSWERED,
            "is_response_0_safe": True,
            "better_response_id": 1,
        },
        unused=("is_response_0_safe",),
    ),
    Shape(
        "sides of questions and answers",
        {
            "chosen": f"Question: {ASKED}\n\nAnswer: {ANSWERED}",
            "rejected": f"Question: {ASKED}\n\nAnswer: {WORSE}",
        },
    ),
    Shape(
        "transcripts with the speaker in front of both sides",
        {"prompt": f"User: {ASKED}", "chosen": f"AI: {ANSWERED}", "rejected": f"AI: {WORSE}"},
    ),
)
FURTHER_PAIRS = tuple(shape._replace(kind=Kind.dpo, format="preference") for shape in FURTHER_PAIRS)
SHAPES = (*SFT, *FURTHER, *PAIRS, *FURTHER_PAIRS)
