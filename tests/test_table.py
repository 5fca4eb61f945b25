r"""A user's own points: what is read, what is refused and with which words."""

import csv
import io
import math
import numpy as np
import pickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import re
import torch

from fokker.data.table import LIMIT, Standardize, Table, read_table, split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pathlib import Path

X = np.array([[0.5, -2.0, 3e8], [1.25, 4.0, -7e-3], [0.1, 0.0, 1.0]])
NAMES = ("a", "b", "c")
fast = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
finite = st.floats(-1e38, 1e38) | st.floats(width=32, allow_nan=False, allow_infinity=False)
points = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5).flatmap(
    lambda shape: hnp.arrays(np.float64, (shape[0] + 1, shape[1]), elements=finite)
)
# a header has no cell that is a number, hence a letter that no number has
names = lambda d: st.lists(st.text(max_size=3).map(lambda s: f"z{s}z"), min_size=d, max_size=d)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def assert_table(table: Table, x: np.ndarray, columns: tuple[str, ...]) -> None:
    assert isinstance(table, Table) and table.columns == columns
    assert table.values.dtype == torch.float64
    assert np.array_equal(table.values.numpy(), x)


def refused(path: Path, message: str) -> None:
    r"""Asserts that a file is refused with one line, that names it and matches the message."""
    with pytest.raises(ValueError) as caught:
        read_table(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    assert re.fullmatch(message, text.removeprefix(str(path))), text


# --- what is read ---


@fast
@given(x=points, data=st.data())
def test_text_round_trip(tmp_path, x, data):
    sep = data.draw(st.sampled_from(",\t;"))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoting = data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=sep, lineterminator=end, quoting=quoting)
    columns = tuple(f"x{j}" for j in range(x.shape[1]))
    if data.draw(st.booleans()):
        # the csv module quotes its own separator only, and another would be taken for it
        writer = csv.writer(text, delimiter=sep, lineterminator=end, quoting=csv.QUOTE_ALL)
        columns = tuple(f"{j}{name}" for j, name in enumerate(data.draw(names(x.shape[1]))))
        writer.writerow(columns)
    writer.writerows([[repr(float(v)) for v in row] for row in x])
    bom = data.draw(st.sampled_from(["", "\ufeff"]))
    tail = data.draw(st.sampled_from(["", end, f"{end}  {end}{end}"]))
    assert_table(read_table(write(tmp_path / "x.csv", bom + text.getvalue() + tail)), x, columns)


@fast
@given(x=points, order=st.sampled_from("CF"), big=st.booleans())
def test_npy_round_trip(tmp_path, x, order, big):
    np.save(tmp_path / "x.npy", np.asarray(x, dtype=">f8" if big else "<f8", order=order))
    assert_table(read_table(tmp_path / "x.npy"), x, tuple(f"x{j}" for j in range(x.shape[1])))


@fast
@given(x=points, data=st.data())
def test_parquet_round_trip(tmp_path, x, data):
    columns = tuple(f"{j}{name}" for j, name in enumerate(data.draw(names(x.shape[1]))))
    pq.write_table(pa.table(list(x.T), names=columns), tmp_path / "x.parquet", row_group_size=2)
    assert_table(read_table(tmp_path / "x.parquet"), x, columns)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV"])
@pytest.mark.parametrize("sep", [",", "\t", ";"])
@pytest.mark.parametrize("header", [True, False])
def test_separators(tmp_path, suffix, sep, header):
    lines = [sep.join(map(repr, row)) for row in X.tolist()]
    text = "\n".join([sep.join(NAMES), *lines] if header else lines)
    table = read_table(write(tmp_path / f"x{suffix}", text))
    assert_table(table, X, NAMES if header else ("x0", "x1", "x2"))


def test_a_path_may_be_a_string_and_tables_compare(tmp_path):
    table = read_table(str(write(tmp_path / "x.csv", "1,2\n3,4")))  # pyright: ignore
    assert_table(table, np.array([[1.0, 2.0], [3.0, 4.0]]), ("x0", "x1"))
    assert table != read_table(tmp_path / "x.csv")  # equal to itself alone, and no error


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"mass, kg","size; cm"\n1,2\n3,4', ("mass, kg", "size; cm")),
        ('"mass, kg";"a\tb"\n1;2\n3;4', ("mass, kg", "a\tb")),
        ('mass,"size; cm"\n1,2\n3,4', ("mass", "size; cm")),
        ('"say ""hi""","two\r\nlines"\n1,2\n3,4', ('say "hi"', "two\r\nlines")),
        (" a , b  \n1,2\n3,4", ("a", "b")),
        ("Na,é\n 1 , +2 \n3.,.4e1", ("Na", "é")),  # sodium is a name, not a missing value
        ("\ufeffa,b\r\n1,2\r\n3,4\r\n\r\n", ("a", "b")),
        ('\ufeff"1","2"\n"3","4"\n', ("x0", "x1")),
    ],
)
def test_headers(tmp_path, text, columns):
    table = read_table(write(tmp_path / "x.csv", text))
    assert_table(table, np.array([[1.0, 2.0], [3.0, 4.0]]), columns)


def test_a_single_column(tmp_path):
    x = np.array([[1.5], [2.0], [-3.0]])
    assert_table(read_table(write(tmp_path / "x.csv", "1.5\n2\n-3\n")), x, ("x0",))
    assert_table(read_table(write(tmp_path / "x.csv", "height\n1.5\n2\n-3\n")), x, ("height",))
    np.save(tmp_path / "x.npy", x[:, 0])
    assert_table(read_table(tmp_path / "x.npy"), x, ("x0",))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "float16", "float32", "longdouble"])
def test_npy_dtypes(tmp_path, dtype):
    x = np.array([[1, 2], [3, 100]])
    np.save(tmp_path / "x.npy", x.astype(dtype))
    assert_table(read_table(tmp_path / "x.npy"), x, ("x0", "x1"))


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(21, 2)],
    ids=str,
)
def test_parquet_types(tmp_path, kind):
    table = pa.table({"a": pa.array([1, 100], pa.int64()).cast(kind), "b": [0.5, 1.5]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert_table(read_table(tmp_path / "x.parquet"), np.array([[1, 0.5], [100, 1.5]]), ("a", "b"))


def test_integers_beyond_float64_are_rounded(tmp_path):
    x = np.array([[2**53 + 1], [-(2**62) - 1]])
    pq.write_table(pa.table({"a": x[:, 0]}), tmp_path / "x.parquet")
    assert_table(read_table(tmp_path / "x.parquet"), x, ("a",))


def test_the_largest_float32_is_read(tmp_path):
    text = "3.4028235e+38\n-3.4028235e+38\n"  # as float32 prints itself, above it in float64
    most = torch.finfo(torch.float32).max
    read = read_table(write(tmp_path / "x.csv", text)).values.flatten()
    assert read.tolist() == [3.4028235e38, -3.4028235e38]
    assert read.float().tolist() == [most, -most]
    for x in (LIMIT, -LIMIT):
        path = write(tmp_path / "x.csv", f"1\n{x!r}\n")
        refused(path, r", line 2, column 1 'x0': expected a finite number, got '.*', beyond .*")
        below = math.nextafter(x, 0)
        assert read_table(write(path, f"1\n{below!r}\n")).values.isfinite().all()


# --- what is refused ---

CELL = "expected a finite number, got "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,oops\n", f", line 3, column 2 'b': {CELL}the text 'oops'"),
        ("1,2\nx,4\n", f", line 2, column 1 'x0': {CELL}the text 'x'"),
        ("a,b\r\n1,2\r\n\r\n3,4", ", line 3: expected 2 cells, separated by ',', as in .* got 0"),
        ("a\rb\r1\r", f", line 2, column 1 'a': {CELL}the text 'b'"),
        ('"a\nb",c\n1,2\n3,x', f", line 4, column 2 'c': {CELL}the text 'x'"),
        ("a;b\n1,5;2,5\n", f", line 2, column 1 'a': {CELL}the text '1,5'"),
        ("1 2\n3 4\n", f", line 2, column 1 '1 2': {CELL}the text '3 4'"),
        ("1\n1_000\n", f", line 2, column 1 'x0': {CELL}the text '1_000'"),
        ("a\n1\nTrue\n", f", line 3, column 1 'a': {CELL}the text 'True'"),
        ("a\n" + "y" * 99, f", line 2, column 1 'a': {CELL}the text '{'y' * 40}'"),
        ("a,b\n1,\n", f", line 2, column 2 'b': {CELL}a missing value, ''"),
        ('a\n1\n""\n', f", line 3, column 1 'a': {CELL}a missing value, ''"),
        ("a\tb\n1\t2\n\t\n", f", line 3, column 1 'a': {CELL}a missing value, ''"),
        ("a,b\n1,2\n3,NA\n", f", line 3, column 2 'b': {CELL}a missing value, 'NA'"),
        ("1,2\nnan,4\n", f", line 2, column 1 'x0': {CELL}a missing value, 'nan'"),
        ("1,-NaN\n", f", line 1, column 2 'x1': {CELL}a missing value, '-NaN'"),
        ("1, null \n3,4", ", line 1: expected only names or only numbers, got ' null ' beside .*"),
        ("1,inf\n", f", line 1, column 2 'x1': {CELL}'inf'"),
        ("1,2\n3,-Infinity\n", f", line 2, column 2 'x1': {CELL}'-Infinity'"),
        ("a\n1\n1e300\n", rf", line 3, column 1 'a': {CELL}'1e300', beyond float32 \(3.4e\+38\)"),
        ("a\n1\n-1e400\n", f", line 3, column 1 'a': {CELL}'-1e400', beyond float32 .*"),
        ("a,b\n1,2\n3\n", ", line 3: expected 2 cells, separated by ',', as in line 1, got 1"),
        ("1;2\n3;4;5\n", ", line 2: expected 2 cells, separated by ';', as in line 1, got 3"),
        ("a,b,a\n1,2,3\n", ", line 1, column 3: expected a name of its own, got 'a'"),
        (",a,b\n0,1,2\n", ", line 1, column 1: expected a name of its own, got ''"),
        ("\na,b\n1,2\n3,4", ", line 1, column 1: expected a name of its own, got ''"),
        ("a,2,b\n", ", line 1: expected only names or only numbers, got 'a' beside numbers"),
        ("", ": expected rows of numbers, got an empty file"),
        ("\ufeff\r\n  \r\n", ": expected rows of numbers, got an empty file"),
        ("a,b\n\n", ": expected rows of numbers, got only the header of line 1"),
        ('a,b\n1,"2\n3,4\n', ", below line 1: expected cells, got unexpected end of data"),
        ('a,b\n1,"2"3\n', ", below line 1: expected cells, got .* expected after .*"),
        ("1," + "2" * 200_000, ", below line 0: expected cells, got field larger than .*"),
        (b"a,b\n1,\xe9\n", ": expected a whole .csv file: 'utf-8' codec can't decode byte 0xe9.*"),
        ("a,b\n1,2".encode("utf-16"), ": expected a whole .csv file: 'utf-8' codec can't .*"),
    ],
)
def test_refused_text(tmp_path, text, message):
    refused(write(tmp_path / "x.csv", text), message)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            np.array([[1.0, Bomb()]], dtype=object),
            ": expected a whole .npy file: Object arrays .*",
        ),
        (X * 1j, ": expected an array of real numbers, got dtype complex128"),
        (X > 0, ": expected an array of real numbers, got dtype bool"),
        (X.astype(str), ": expected an array of real numbers, got dtype <U32"),
        (X.astype("M8[s]"), r": expected an array of real numbers, got dtype datetime64\[s\]"),
        (np.zeros(2, [("a", "f8")]), r": expected an array of real numbers, got dtype \[.*\]"),
        (X[None], r": expected an array of shape \(N, D\) or \(N\), got shape \(1, 3, 3\)"),
        (X[0, 0], r": expected an array of shape \(N, D\) or \(N\), got shape \(\)"),
        (X[:, :0], r": expected an array of shape \(N, D\) or \(N\), got shape \(3, 0\)"),
        (X[:0], ": expected a row or more, got none"),
        (np.array([[1, 2], [3, np.nan]]), f", row 2, column 2 'x1': {CELL}a missing value, 'nan'"),
        (
            np.array([[1, 2], [-np.inf, np.nan], [np.nan, 6]]),
            f", row 2, column 1 'x0': {CELL}'-inf'",
        ),
        (np.array([1, 2, 1e300]), f", row 3, column 1 'x0': {CELL}'1e\\+300', beyond float32 .*"),
    ],
)
def test_refused_npy(tmp_path, x, message):
    np.save(tmp_path / "x.npy", x, allow_pickle=True)
    refused(tmp_path / "x.npy", message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, 2.0], "b": ["u", "v"]}, ", column 2 'b': expected numbers, got string"),
        ({"a": [True, False]}, ", column 1 'a': expected numbers, got bool"),
        ({"a": [[1.0], [2.0]]}, ", column 1 'a': expected numbers, got list<.*>"),
        ({"a": pa.nulls(2)}, ", column 1 'a': expected numbers, got null"),
        ({"": [1.0, 2.0]}, ", column 1: expected a name of its own, got ''"),
        ({}, ", column 1: expected a name of its own, got ''"),
        (
            {"a": [1.0, 2.0], "b": [3, None]},
            f", row 2, column 2 'b': {CELL}a missing value, 'nan'",
        ),
        ({"a": [math.nan, 2.0]}, f", row 1, column 1 'a': {CELL}a missing value, 'nan'"),
        ({"a": [1.0, math.inf]}, f", row 2, column 1 'a': {CELL}'inf'"),
        ({"a": [1.0, -1e300]}, f", row 2, column 1 'a': {CELL}'-1e\\+300', beyond float32 .*"),
        ({"a": pa.array([], pa.float64())}, ": expected a row or more, got none"),
    ],
)
def test_refused_parquet(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    refused(tmp_path / "x.parquet", message)


def test_refused_names_of_parquet(tmp_path):
    pq.write_table(pa.table([[1.0, 2.0]] * 2, names=["a", "a"]), tmp_path / "x.parquet")
    refused(tmp_path / "x.parquet", ", column 2: expected a name of its own, got 'a'")


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    np.save(path, X) if suffix == ".npy" else pq.write_table(pa.table({"a": X[:, 0]}), path)
    whole = path.read_bytes()
    foreign = [b"PK\x03\x04" + whole, b"1,2\n3,4\n", pickle.dumps(Bomb())]
    for content in [*(whole[:n] for n in range(0, len(whole), 7)), whole[:-1], *foreign]:
        refused(write(path, content), f": expected a whole {suffix} file: .+")
    assert len(read_table(write(path, whole)).values) == 3


@pytest.mark.parametrize("name", ["x.xlsx", "x.npz", "x"])
def test_refused_suffixes(tmp_path, name):
    suffix = re.escape(repr(Path(name).suffix))
    refused(tmp_path / name, f": expected one of .csv, .tsv, .npy, .parquet, got {suffix}")


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_files_that_cannot_be_opened(tmp_path, suffix):
    with pytest.raises(FileNotFoundError, match=re.escape(f"x{suffix}")):
        read_table(tmp_path / f"x{suffix}")
    (tmp_path / f"x{suffix}").mkdir()
    with pytest.raises(OSError, match=re.escape(f"x{suffix}")):
        read_table(tmp_path / f"x{suffix}")


# --- mixed tables ---


def test_texts_and_missing_values_of_a_mixed_table(tmp_path):
    text = "id,color,size,flag\nu,red,1.5,yes\nv,,NA,no\nw, blue ,-2,yes\nx,red,?,\ny,red,3,no\n"
    table = read_table(write(tmp_path / "x.csv", text), mixed=True)
    assert table.columns == ("id", "color", "size", "flag")
    assert table.categories == (("u", "v", "w", "x", "y"), ("blue", "red"), (), ("no", "yes"))
    nan = math.nan
    wanted = [[0, 1, 1.5, 1], [1, nan, nan, 0], [2, 0, -2, 1], [3, 1, nan, nan], [4, 1, 3, 0]]
    assert np.array_equal(table.values.numpy(), np.array(wanted), equal_nan=True)
    assert [table.cell(2, j) for j in range(4)] == ["w", "blue", "-2", "yes"]
    assert table.cell(1, 1) == "" and table.identifiers() == (0,)
    kept = table.select([2, 1])
    assert kept.columns == ("size", "color") and kept.texts(1) == ("blue", "red")
    assert table.select([2]).categories == ()


def test_a_mixed_table_of_numbers_is_the_table(tmp_path):
    path = write(tmp_path / "x.csv", "1,2\n3,4.5\n-1e300,6\n".replace("e300", "e30"))
    plain, mixed = read_table(path), read_table(path, mixed=True)
    assert torch.equal(plain.values, mixed.values) and mixed.categories == ()
    assert plain.columns == mixed.columns == ("x0", "x1")
    np.save(tmp_path / "x.npy", np.array([[1.0, math.nan]]))
    assert read_table(tmp_path / "x.npy", mixed=True).values.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", "line 3, column 'b': expected a number, as '2' in line 2, got the text"),
        ("a,b\nx,2\n3,4\n", "line 2, column 'a': expected a number, as '3' in line 3, got the text"),
        ("a,b\n1,2\n3,inf\n", "line 3, column 2 'b': expected a finite number, got 'inf'"),
        ("a,b\n1,2\n3\n", "line 3: expected 2 cells"),
        ("a,b\n", "expected rows of numbers, got only the header of line 1"),
        ("", "expected rows of numbers, got an empty file"),
        ("a,a\nx,1\n", "line 1, column 2: expected a name of its own, got 'a'"),
    ],
)  # fmt: skip
def test_mixed_tables_that_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(write(tmp_path / "x.csv", text), mixed=True)


# --- the map ---


def test_standardized_points_have_mean_zero_and_std_one():
    x = torch.tensor([3.0, 1e-6, 2e7]) * torch.randn(500, 3) + torch.tensor([-1e3, 0.0, 5.0])
    z = Standardize.fit(x)(x, torch.float64)
    assert torch.allclose(z.mean(0), torch.zeros(3), atol=1e-12)
    assert torch.allclose(z.square().mean(0), torch.ones(3), rtol=1e-12)


def test_standardize_computes_in_float64():
    # in float32 the sum of squares, and the difference to a rounded mean, lose every digit
    x = (1e6 + torch.arange(16.0) / 16)[:, None].float()
    fitted = Standardize.fit(x)
    assert fitted.mean == (1e6 + 7.5 / 16,)
    assert fitted.std[0] == pytest.approx(math.sqrt((16**2 - 1) / 12) / 16, rel=1e-12)
    z = fitted(x)
    assert z.dtype == torch.float32
    exact = (torch.arange(16.0) - 7.5) / math.sqrt((16**2 - 1) / 12)
    assert torch.allclose(z[:, 0].double(), exact, rtol=1e-7, atol=0)


@fast
@given(x=points)
def test_inverse(x):
    x = torch.from_numpy(x).float().double()
    x[0] = 0  # so that no column is constant, but one of zeros
    x[-1] = torch.where((x == 0).all(0), 1.0, x[-1])
    fitted = Standardize.fit(x)
    room = 1e-14 * x.abs().amax(0)
    assert ((fitted.inverse(fitted(x, torch.float64)) - x).abs() <= 8 * room).all()
    z = fitted(x.float())
    assert z.dtype == torch.float32 and fitted.inverse(z).dtype == torch.float64


def test_a_column_far_from_zero_keeps_its_digits(tmp_path):
    r"""Normals offset by 3e7 and 1e9: in float32 they have twenty distinct values or fewer."""
    rows = torch.randn(2000, 2) + torch.tensor([3e7, 1e9])
    np.save(tmp_path / "x.npy", rows.numpy())
    x = read_table(tmp_path / "x.npy").values
    z = Standardize.fit(x)(x)
    assert torch.equal(x, rows) and z.dtype == torch.float32
    assert all(len(torch.unique(column)) > 1990 for column in z.T)
    assert torch.allclose(z.double(), (rows - rows.mean(0)) / rows.std(0, correction=0), atol=1e-6)


@pytest.mark.parametrize("power", [-1000, 0, 100])
def test_a_column_of_any_size_keeps_its_digits(power):
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = Standardize.fit(x), Standardize.fit(x * 2.0**power)
    std, mean = torch.std_mean(x, dim=0, correction=0)
    assert (one.std, one.mean) == (tuple(std.tolist()), tuple(mean.tolist()))
    assert other.std == tuple(s * 2.0**power for s in one.std)
    assert torch.equal(other(x * 2.0**power), one(x)) and math.isfinite(other.log_volume)


def test_map_of_a_batch_of_any_shape():
    fitted = Standardize((1.0, -2.0), (2.0, 0.5))
    x = torch.tensor([[[3.0, -1.0]], [[1.0, -2.5]]])
    assert torch.equal(fitted(x), torch.tensor([[[1.0, 2.0]], [[0.0, -1.0]]]).float())
    assert torch.equal(fitted.inverse(fitted(x)), x)
    assert fitted == Standardize((1.0, -2.0), (2.0, 0.5)) and len({fitted, fitted}) == 1


def test_log_volume_changes_the_units_of_a_density():
    mean, std = (1.0, -2.0, 0.0), (2.0, 0.5, 30.0)
    fitted, x = Standardize(mean, std), 10 * torch.randn(7, 3)
    normal = lambda m, s: torch.distributions.Normal(torch.tensor(m), torch.tensor(s))
    standard = normal((0.0,) * 3, (1.0,) * 3).log_prob(fitted(x, torch.float64)).sum(1)
    assert fitted.log_volume == pytest.approx(math.log(30))
    assert torch.allclose(standard - fitted.log_volume, normal(mean, std).log_prob(x).sum(1))


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e30])
def test_a_constant_column_is_named(value):
    # a mean of equal numbers rounds, so that their computed std need not be zero
    x = torch.stack((torch.arange(10.0), torch.full((10,), value)), dim=1)
    said = rf"^expected column '{{}}' to vary, got {re.escape(str(value))} in all 10 rows$"
    with pytest.raises(ValueError, match=said.format("x1")):
        Standardize.fit(x)
    with pytest.raises(ValueError, match=said.format("mass")):
        Standardize.fit(x, ("time", "mass"))


def test_refused_maps():
    for mean, std in [((), ()), ((0.0,), (1.0, 1.0)), ((0.0,), (0.0,)), ((math.nan,), (1.0,))]:
        with pytest.raises(ValueError, match=r"expected a finite mean and a std > 0 .* got Stand"):
            Standardize(mean, std)
    with pytest.raises(ValueError, match=r"expected values to be finite, got 1 of 2 points"):
        Standardize.fit(torch.tensor([[1.0], [math.inf]]))
    fitted = Standardize((0.0, 0.0), (1.0, 1.0))
    for how in (fitted, fitted.inverse):
        with pytest.raises(ValueError, match=r"\(\*, 2\), got torch.float64 \(4, 3\)"):
            how(torch.zeros(4, 3))
        with pytest.raises(ValueError, match=r"expected floats .* got torch.int64 \(4, 2\)"):
            how(torch.zeros(4, 2, dtype=torch.int64))


# --- the split ---


@pytest.mark.parametrize(
    ("held_out", "sizes"), [(0.001, (3, 1, 1)), (0.6, (2, 1, 2)), (0.999, (1, 2, 2))]
)
def test_split_leaves_a_row_in_each_part(held_out, sizes):
    assert tuple(map(len, split(5, held_out))) == sizes


@fast
@given(
    n=st.integers(3, 60),
    held_out=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 2**63),
)
def test_split_is_a_partition(n, held_out, seed):
    parts = _, validation, test = split(n, held_out, seed)
    assert min(map(len, parts)) >= 1 and 0 <= len(test) - len(validation) <= 1
    assert abs(len(validation) + len(test) - held_out * n) <= 2
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n))  # hence disjoint
    assert all(map(torch.equal, split(n, held_out, seed), parts))


def test_split_depends_on_its_seed_alone():
    torch.manual_seed(1)
    _, validation, test = split(200)
    torch.manual_seed(2)
    assert torch.equal(split(200, seed=0)[2], test) and len(test) == len(validation) == 20
    held = lambda seed: torch.cat(split(200, seed=seed)[1:]).sort().values
    assert not torch.equal(held(0), held(1))
    for first in (0, 160):  # at random, not the first rows, nor the last
        assert not torch.equal(held(0), torch.arange(first, first + 40))


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, math.nan])
def test_refused_splits(held_out):
    said = "expected 0 < held_out < 1 of 3 rows or more, got "
    with pytest.raises(ValueError, match=f"{said}{held_out!r} of 4"):
        split(4, held_out)
    with pytest.raises(ValueError, match=f"{said}0.2 of 2"):
        split(2)
