"""Block diagrams of wirings, drawn from the recorded forward pass of a real stack.

    recorder -> graph -> simplify -> blocks -> grid -> routing -> layout -> svg, text_art

Each step is a function of the previous result; each module docstring shows its input and output.
"""
