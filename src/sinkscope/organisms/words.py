"""The word lists that the prose generator draws from. Data only."""

from __future__ import annotations

NAMES = (
    "Ada", "Ben", "Clara", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Leo", "Mira", "Nils",
    "Olga", "Paul", "Rosa", "Sam", "Tara", "Victor", "Wanda", "Yusuf",
)  # fmt: skip
PEOPLE = ("the baker", "the old sailor", "a young teacher", "the farmer", "the painter", "the doctor", "a quiet neighbour",
          "the clockmaker", "the librarian", "the gardener")  # fmt: skip
PLACES = (
    "the harbour", "the market", "the old mill", "the library", "the station", "the river", "the garden", "the forest",
    "the workshop", "the school", "the bridge", "the tower", "the kitchen", "the village square", "the lighthouse",
)  # fmt: skip
THINGS = (
    "a lamp", "a letter", "a wooden box", "a map", "a bicycle", "a silver key", "a basket of apples", "a blue coat",
    "a broken clock", "a small dog", "a book", "a bell", "a rope", "a kettle", "a violin", "a jar of honey", "a ladder",
    "a red kite", "a stone", "a mirror",
)  # fmt: skip
FOODS = ("bread", "butter", "milk", "rice", "onions", "apples", "cheese", "salt", "flour", "eggs", "tea", "pears", "carrots",
         "beans", "sugar", "lemons")  # fmt: skip
TOOLS = ("hammer", "brush", "saw", "rope", "nails", "paint", "gloves", "glue", "wire", "lamp oil", "sandpaper", "a spare wheel",
         "two buckets", "a long board")  # fmt: skip
WEATHER = ("it was raining", "the sun was shining", "a cold wind blew from the north", "fog lay over the fields",
           "snow fell without a sound", "the air smelled of salt", "the sky was clear", "thunder rolled far away")  # fmt: skip
TIMES = ("One morning", "In the evening", "Late at night", "On Monday", "Last summer", "Before breakfast", "After the storm",
         "At noon", "Many years ago", "On the first day of spring")  # fmt: skip
MOODS = ("happy", "tired", "curious", "worried", "proud", "hungry", "calm", "surprised", "angry", "patient")
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey")
WENT = (
    "walked to",
    "ran to",
    "stopped at",
    "came back from",
    "looked at",
    "waited near",
    "drove past",
    "found the way to",
)
DID = ("found", "lost", "carried", "bought", "repaired", "hid", "sold", "remembered", "dropped", "painted")
WANTED = ("to see the sea", "to go home", "to learn the song", "to help", "to sleep", "to open the door", "to know the truth",
          "to finish the work", "to tell a story", "to thank everyone")  # fmt: skip
ENDINGS = (
    "Nobody spoke for a while.", "That was the end of it.", "The next day everything was different.", "They laughed.",
    "It was enough.", "The door closed slowly.", "And so the work began again.", "No one ever found out why.",
    "Then the lights went out!", "It had been a good day.",
)  # fmt: skip
QUESTIONS = (
    "Where did you put it?", "Did you see that?", "What time is it?", "Who left the door open?", "Why are you so late?",
    "Can you help me with this?", "How far is it to the station?", "Is there any bread left?", "Shall we go?",
)  # fmt: skip
REPLIES = (
    "I don't know.", "Not yet, I think.", "Of course!", "It's in the kitchen.", "Ask the others.", "Well, maybe tomorrow.",
    "Yes; but be careful.", "No, that can't be right.", "I'll be there soon.", "You're right, as always.", "Wait a moment...",
)  # fmt: skip
SAID = ("said", "asked", "whispered", "answered", "called", "replied")
CHORES = ("water the plants", "call the doctor", "send the letter", "clean the stove", "feed the cat", "fix the roof",
          "sweep the floor", "return the books", "buy stamps", "sharpen the knives", "wash the coats")  # fmt: skip
SUBJECTS = (
    "The heron",
    "A candle",
    "The moon",
    "A river",
    "The oak",
    "Glass",
    "Salt",
    "A bee",
    "The tide",
    "Iron",
)
FACTS = (
    "is older than it looks", "changes with the seasons", "can be found near water", "was once worth more than gold",
    "needs light and time", "moves slowly, but never stops", "is lighter than stone", "keeps its shape when it is cold",
    "has many names", "is made by patient hands",
)  # fmt: skip
