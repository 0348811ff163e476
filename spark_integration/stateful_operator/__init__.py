"""The stateful operator: route -> bucket -> unpack."""
