"""Export of plain models as stock classes of transformers, which load without addnorm."""

from addnorm.interop.stock.classes import STOCK_CLASSES
from addnorm.interop.stock.convert import StockModel, to_stock

__all__ = ["STOCK_CLASSES", "StockModel", "to_stock"]
