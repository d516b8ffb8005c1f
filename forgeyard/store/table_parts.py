"""What all table definitions share: the metadata, and columns of texts and numbers.

Instants are epoch milliseconds by the database's clock; every row that has a state has a version.
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
# SQLite counts rows only in a column declared INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def text(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column[str]:
    """Declare a column of texts."""
    return sa.Column(name, sa.Text, nullable=nullable, server_default=default)


def number(name: str, *, nullable: bool = False, default: int | None = None) -> sa.Column[int]:
    """Declare a column of whole numbers."""
    value = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger, nullable=nullable, server_default=value)
