import sinkscope as ss

model = ss.load("organism/scratch", device="cpu")
prompts = ["Jack has 6 bags with 6 seeds each. He sells 28 of them. How many seeds does he have now?"]
decoding = ss.LladaDecoding(length=16, steps=16, block=16)
run = ss.generate(model, prompts, decoding, capture=ss.Capture(anatomy=True))
trace = run.trace
