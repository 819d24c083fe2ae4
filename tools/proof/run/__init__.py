"""The main job, `make run`: everything at once, on one machine, and the proof that no reading was lost or came
twice."""
