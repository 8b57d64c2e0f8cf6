"""The Python API: `from launch import plan, run, runs, status, compare`.

    planned = plan("sft", gpus=8, recipe={"learning_rate": 5e-6})
    print(planned.memory, planned.command)

    training = run("demo", trainer="trl_sft")
    training.wait()
    training.metrics().plot(x="step", y="loss")

    print(status())
    print(compare("demo/a", training))

Keys are those of the command line; a mapping sets the keys below it. What cannot work raises
`UserError`, whose `problems` have an id, a message and a cure each.
"""
