"""``tensorgate infer``: one photograph through one door of a running gateway, and the classes it answers."""
