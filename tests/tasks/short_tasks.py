"""Every task in a version that is quick to draw."""

from foretrace import tasks

SHORT: dict[str, tasks.Task] = {
    task.name: task
    for task in (
        tasks.EvidenceAccumulation(n_cues=3, cue=20.0, gap=10.0, delay=30.0, recall=20.0, n_test=20),
        tasks.StoreRecall(n_symbols=5, symbol=20.0, expected_delay=2.0, n_channels=20, n_test=20),
        tasks.DelayedMatchToSample(sample_time=30.0, delay=20.0, test_time=25.0, n_channels=24, n_test=20),
        tasks.PatternGeneration(duration=200.0, n_channels=10, n_signals=2, n_test=3),
        tasks.Copy(n_bits=3, pattern=4, delay=2, n_test=20),
        tasks.Adding(n_steps=12, n_test=20),
        tasks.Randman(n_units=12, n_samples=40, n_frequencies=20),
        tasks.SequentialDigits(),
        tasks.SequentialMNIST(),
        tasks.JapaneseVowels(),
    )
}
