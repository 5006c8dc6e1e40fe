"""What the description cannot say."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    """A cursor is good for its own list only, and none that is made up is of any list: good requests go without."""
    generation = case.meta.generation if case.meta else None
    if generation and generation.mode.is_positive and case.query:
        case.query.pop("cursor", None)
