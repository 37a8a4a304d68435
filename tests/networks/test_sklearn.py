# SPDX-License-Identifier: Apache-2.0
"""Models of scikit-learn, exported by skl2onnx, give the numbers of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import sweep

import penstock

ROWS = 40
ENSEMBLES = "RandomForest ExtraTrees GradientBoosting"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{each}Classifier": ("sklearn.ensemble", {"n_estimators": 10, "random_state": 0}) for each in ENSEMBLES.split()
    },
    **{f"{each}Regressor": ("sklearn.ensemble", {"n_estimators": 10, "random_state": 0}) for each in ENSEMBLES.split()},
    "AdaBoostRegressor": ("sklearn.ensemble", {"n_estimators": 5, "random_state": 0}),
    "DecisionTreeClassifier": ("sklearn.tree", {"random_state": 0}),
    "DecisionTreeRegressor": ("sklearn.tree", {"random_state": 0}),
    "LogisticRegression": ("sklearn.linear_model", {"max_iter": 9999}),
    "SGDClassifier": ("sklearn.linear_model", {"random_state": 0}),
    "LinearRegression": ("sklearn.linear_model", {}),
    "Ridge": ("sklearn.linear_model", {}),
    "LinearSVC": ("sklearn.svm", {}),
    "GaussianNB": ("sklearn.naive_bayes", {}),
    "MLPClassifier": ("sklearn.neural_network", {"max_iter": 30, "random_state": 0}),
}
BEFORE = ("StandardScaler", "Normalizer", "MinMaxScaler")
"""What may scale the features first."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "data"),
    sweep(
        [
            (name, data)
            for name in MODELS
            for data in (
                ("iris", "breast_cancer", "digits") if "egress" not in name or "Log" in name else ("diabetes",)
            )
            if name not in ("Ridge", "LinearRegression") or data == "diabetes"
        ],
        lambda each: each in (("RandomForestClassifier", "iris"), ("GradientBoostingRegressor", "diabetes")),
    ),
)
def test_a_model_gives_the_numbers_of_scikit_learn(name: str, data: str) -> None:
    pytest.importorskip("sklearn")
    skl2onnx: Any = pytest.importorskip("skl2onnx")
    datasets: Any = pytest.importorskip("sklearn.datasets")
    preprocessing: Any = pytest.importorskip("sklearn.preprocessing")
    folder, options = MODELS[name]
    model: Any = getattr(pytest.importorskip(folder), name)(**options)
    x, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    scaler = getattr(preprocessing, BEFORE[len(name) % len(BEFORE)])()
    x = scaler.fit_transform(x).astype(np.float32)
    model.fit(x, y)
    rows = x[np.random.default_rng(0).permutation(len(x))[:ROWS]]
    # LinearSVC has no ZipMap to leave out.
    zipmap = {id(model): {"zipmap": False}} if hasattr(model, "classes_") and name != "LinearSVC" else None
    exported = skl2onnx.to_onnx(model, x[:1], options=zipmap, target_opset={"": 18, "ai.onnx.ml": 3})
    found = penstock.compile(exported)(rows)
    predicted = model.predict(rows)
    np.testing.assert_allclose(found[0].ravel(), predicted, rtol=1e-5, atol=1e-4)
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(found[1], model.predict_proba(rows), rtol=1e-3, atol=1e-5)
