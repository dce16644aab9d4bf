"""`addnorm selftest`: test this installation and describe it."""

from typing import Annotated

import typer


def selftest(
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Device to test, such as cuda; default: cpu")
    ] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON")] = False,
) -> None:
    """Test this installation in about a minute.

    The output can be pasted into a bug report.

    Native kernels against plain torch, every wiring against float64, a small training, decoding
    with the cache, and exports; on a GPU also attention over packed sequences, fused kernels,
    waiting of the host, compiled steps and bfloat16. The exit code is 1 if a check fails.
    """
    from dataclasses import asdict

    from addnorm.cli.output import write_json
    from addnorm.selftest import describe_environment, find_device, run_checks

    find_device(device)  # before anything is printed
    environment = describe_environment()
    if not json:
        for name, text in environment.items():
            print(f"{name + ':':18} {text}")
        print()
    results = []
    for result in run_checks(device):
        results.append(result)
        if not json:
            line = f"{result.name:9} {result.outcome:7} {result.seconds:5.1f} s  {result.detail}"
            print(line, flush=True)
    failed = sum(result.outcome == "failed" for result in results)
    if json:
        write_json({"environment": environment, "results": [asdict(each) for each in results]})
    else:
        print(f"\n{len(results) - failed} passed, {failed} failed on {device}")
    if failed:
        raise typer.Exit(1)
