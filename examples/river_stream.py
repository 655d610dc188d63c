"""A network among river's models: a stream whose answer lies in the past, scored sample by sample as river does it.

The stream is river's noisy sine, one step ahead. A linear model sees one sample at a time; the network carries a state
from sample to sample, and learns online what to keep in it.
"""

from river import evaluate, linear_model, metrics, preprocessing
from river.datasets import synth

from foretrace.train.river import OnlineRegressor

SAMPLES = 1500


def stream():
    """Each sample with the sine of the next one as its target."""
    last = None
    for x, _ in synth.AnomalySine(n_samples=SAMPLES, n_anomalies=75, seed=0):
        if last is not None:
            yield last, x["sine"]
        last = x


def main():
    models = {"linear regression": linear_model.LinearRegression(), "GRU, D_RTRL": OnlineRegressor("GRU", n_hidden=16)}
    for name, model in models.items():
        scaled = preprocessing.StandardScaler() | model
        print(name)
        for score in evaluate.iter_progressive_val_score(stream(), scaled, metrics.MAE(), step=500):
            print(f"  {score['Step']:4d} samples  {score['MAE'].get():.4f}")
    print()
    print(models["GRU, D_RTRL"].learner.report)


if __name__ == "__main__":
    main()
