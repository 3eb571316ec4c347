"""Prompts for a model to write text of its own: kinds of requests, each about one of many topics.

Topics for held-out text are others than those for training, and so is what held-out requests for code ask for. The
order is shuffled by a seed, and repeats when all have been had; the draws of the answers differ then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_ASK = [
    "Explain {} to a beginner.",
    "What is {}?",
    "Write a short story about {}.",
    "Give me five tips about {}.",
    "Write a poem about {}.",
    "What are the advantages and disadvantages of {}?",
    "Tell me about the history of {}.",
    "Write an email to a friend about {}.",
    "List ten facts about {}.",
    "How does {} work?",
    "Write a dialogue between two people about {}.",
    "Summarise what is known about {} in one paragraph.",
    "Compare {} with something similar.",
    "Why is {} important?",
    "Write a blog post about {}.",
    "Describe {} step by step.",
    "What questions do people often ask about {}? Answer them.",
    "Give three examples of {}.",
    "Write a product description that has to do with {}.",
    "What should I know before I start with {}?",
    "Make a weekly plan for learning about {}.",
    "Write a short news article about {}.",
    "What common mistakes do people make with {}?",
    "Translate into French: I would like to know more about {}.",
    "Write a Python program that has to do with {}.",
    "Write a Python function about {}, with a docstring and an example of its use.",
    "Write a class in Java that models {}.",
    "Write an HTML page about {}.",
    "Make a JSON object with data about {}.",
    "Write a table in Markdown about {}.",
    "Write a SQL query over a table about {}.",
    "Write three short quiz questions about {} with answers.",
]

_TOPICS = [
    "photosynthesis",
    "the solar system",
    "cooking pasta",
    "learning to play the guitar",
    "electric cars",
    "the Roman Empire",
    "growing tomatoes",
    "public libraries",
    "sorting a list of numbers",
    "climate change",
    "riding a bicycle",
    "the water cycle",
    "job interviews",
    "football",
    "a lonely robot",
    "cats",
    "prime numbers",
    "making bread",
    "the French Revolution",
    "a bank account",
    "online shopping",
    "the human heart",
    "chess",
    "weather forecasts",
    "a shopping list",
    "mountain climbing",
    "artificial intelligence",
    "saving money",
    "dogs",
    "the Pacific Ocean",
    "a school timetable",
    "healthy breakfasts",
    "temperature conversion",
    "train travel",
    "the moon",
    "writing a diary",
    "a small bakery",
    "volcanoes",
    "counting words in a text",
    "time management",
    "vaccines",
    "jazz music",
    "a hotel booking",
    "dinosaurs",
    "working from home",
    "the printing press",
    "a to-do list",
    "coffee",
    "honey bees",
    "binary search",
    "meditation",
    "the Great Wall of China",
    "a recipe for soup",
    "renewable energy",
    "photography",
    "the stock market",
    "a student's grades",
    "Shakespeare",
    "the internet",
    "running a marathon",
    "a library catalogue",
    "sleep",
    "gravity",
    "a birthday party",
    "recycling",
    "fractions",
    "the immune system",
    "a pet shop",
    "ancient Egypt",
    "gardening in spring",
    "the Fibonacci sequence",
    "public speaking",
    "a detective",
    "whales",
    "a movie collection",
    "learning a new language",
    "bridges",
    "a weather station",
    "friendship",
    "the periodic table",
    "an employee database",
    "painting",
    "black holes",
    "a calculator",
    "road safety",
    "chocolate",
    "palindromes",
    "a picnic",
    "the brain",
    "camping",
    "password security",
    "a parking garage",
    "yoga",
    "rainbows",
    "a tic-tac-toe game",
    "the Olympic Games",
    "dental care",
    "a bus schedule",
    "poetry",
    "earthquakes",
]

_HELD_OUT_TOPICS = [
    "tea",
    "penguins",
    "a vending machine",
    "the Industrial Revolution",
    "swimming",
    "leap years",
    "a flower shop",
    "sound waves",
    "knitting",
    "a traffic light",
    "the Sahara desert",
    "reversing a string",
]

_ASK_FOR_CODE = [
    "Write a Python function that {does}.",
    "Write a JavaScript function that {does}, with comments.",
    "Write a program in C that {does}.",
    "Write a Java class with a method that {does}, and a main method that uses it.",
    "Write unit tests in Python for a function that {does}.",
    "Write a Rust function that {does}, and explain each line.",
    'Go on with this Python file:\n\ndef {call}:\n    """It {does}."""\n',
    "Go on with this JavaScript file, and add examples:\n\n// It {does}.\nfunction {call} {{\n",
]

_HELD_OUT_CODE = {
    "count_vowels(text)": "counts the vowels of a text",
    "transpose(matrix)": "turns the rows of a matrix into columns",
    "merge_intervals(intervals)": "merges intervals that overlap",
    "is_balanced(text)": "says whether the brackets in a text match",
    "second_largest(values)": "finds the second largest of some values",
    "roman_numeral(year)": "writes a year as a Roman numeral",
    "flatten(nested)": "makes a flat list of nested lists",
    "longest_line(path)": "finds the longest line of a file",
    "caesar(text, shift)": "encrypts a text by the Caesar cipher",
    "moving_average(values, size)": "computes a moving average",
    "group_by_length(words)": "groups words by their lengths",
    "hamming_distance(left, right)": "counts the places in which two strings differ",
    "parse_csv_line(line)": "splits a line of a CSV file, with quotes heeded",
    "to_binary(number)": "writes a whole number in binary digits",
    "remove_duplicates(values)": "drops values that occurred before",
    "breadth_first(graph, start)": "visits all nodes of a graph, the nearest first",
}


def prompts(held_out: bool, seed: int) -> Iterator[str]:
    """Without end. Every kind of request meets every topic once before any pair comes again."""
    topics = _HELD_OUT_TOPICS if held_out else _TOPICS
    return _shuffled([ask.format(topic) for ask in _ASK for topic in topics], seed)


def code_prompts(seed: int) -> Iterator[str]:
    """Requests for code, held out, without end: as `prompts`."""
    tasks = _HELD_OUT_CODE.items()
    return _shuffled([ask.format(call=call, does=does) for ask in _ASK_FOR_CODE for call, does in tasks], seed)


def _shuffled(each: list[str], seed: int) -> Iterator[str]:
    random.Random(seed).shuffle(each)
    while True:
        yield from each
