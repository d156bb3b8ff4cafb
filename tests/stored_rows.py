"""Every number that tables hold, by table and id: what tests of stores, plans and resumes compare."""


def rows_by_id(embeddings):
    """Columns and parts of each row of this process, and of each unit of other state; none is held twice."""
    rows = {}
    for name, state in embeddings.table_states().items():
        for block in state.blocks(1 << 12):
            for number, one in enumerate(block.ids):
                parts = {part: values[number].tolist() for part, values in block.parts.items()}
                assert (name, int(one)) not in rows
                rows[name, int(one)] = block.columns, parts
    return rows
