# ruff: noqa: E501
"""State that an object keeps under several names: written by one name, read by another."""

from __future__ import annotations

import builtins
import textwrap

import pytest
import torch
from dovetail_capture import optimize, run_graph

# (name, statements run in the program's globals, the body of a function of the tensor `t`)
PROGRAMS = [
    (
        "grad then _grad",
        "w=torch.ones(2,requires_grad=True)\nw.grad=torch.full((2,),9.)",
        "w.grad = t*3\nreturn w._grad + 0",
    ),
    (
        "_grad then grad",
        "w=torch.ones(2,requires_grad=True)\nw.grad=torch.full((2,),9.)",
        "w._grad = t*3\nreturn w.grad + 0",
    ),
    (
        "_grad None",
        "w=torch.ones(2,requires_grad=True)\nw.grad=torch.full((2,),9.)",
        "w._grad = None\nreturn t*2 if w.grad is None else t*3",
    ),
    (
        "del _grad",
        "w=torch.ones(2,requires_grad=True)\nw.grad=torch.full((2,),9.)",
        "del w._grad\nreturn t*2 if w.grad is None else t*3",
    ),
    (
        "grad both",
        "w=torch.ones(2,requires_grad=True)\nw.grad=torch.full((2,),9.)",
        "w.grad = t*2\nw._grad = t*5\nreturn w.grad+w._grad",
    ),
    ("tensor __dict__", "w=torch.ones(2)", "w.tag = 5\nreturn t*w.__dict__['tag']"),
    ("tensor vars", "w=torch.ones(2)", "w.tag = 5\nreturn t*len(vars(w))"),
    ("tensor setdefault", "w=torch.ones(2)", "w.__dict__['tag']=7\nreturn t*w.tag"),
    ("tensor getattr", "w=torch.ones(2)", "setattr(w,'tag',3)\nreturn t*getattr(w,'tag')"),
    (
        "grad_fn",
        "w=torch.ones(2,requires_grad=True)*2",
        "return t*(2 if w._grad_fn is None else 3)",
    ),
    (
        "requires_grad",
        "w=torch.ones(2)",
        "w.requires_grad_()\nreturn t*(2 if w.requires_grad else 3)",
    ),
    (
        "requires_grad set",
        "w=torch.ones(2)",
        "w.requires_grad = True\nreturn t*(2 if w.requires_grad else 3)",
    ),
    (
        "param attr/_parameters",
        "m=torch.nn.Linear(2,2,bias=False)",
        "m.weight = torch.nn.Parameter(t[None]*torch.ones(2,1))\nreturn m._parameters['weight']*1",
    ),
    (
        "_parameters/attr",
        "m=torch.nn.Linear(2,2,bias=False)",
        "m._parameters['weight'] = torch.nn.Parameter(t[None]*torch.ones(2,1))\nreturn m.weight*1",
    ),
    (
        "buffer/_buffers",
        "m=torch.nn.Module()\nm.register_buffer('b',torch.ones(2))",
        "m.b = t*2\nreturn m._buffers['b']+m.b",
    ),
    (
        "_buffers/buffer",
        "m=torch.nn.Module()\nm.register_buffer('b',torch.ones(2))",
        "m._buffers['b'] = t*2\nreturn m.b*3",
    ),
    (
        "_modules/attr",
        "m=torch.nn.Module()\nm.c=torch.nn.ReLU()\ni=torch.nn.Identity()",
        "m._modules['c'] = i\nreturn m.c(t-3)",
    ),
    (
        "attr/_modules",
        "m=torch.nn.Module()\nm.c=torch.nn.ReLU()\ni=torch.nn.Identity()",
        "m.c = i\nreturn m._modules['c'](t-3)",
    ),
    (
        "training/__dict__",
        "m=torch.nn.Dropout(1.)",
        "m.training=False\nreturn t*(2 if m.__dict__['training'] else 3)",
    ),
    ("__dict__/attr", "class A: pass\na=A()\na.k=1", "a.__dict__['k']=5\nreturn t*a.k"),
    ("vars/attr", "class A: pass\na=A()\na.k=1", "vars(a)['k']=5\nreturn t*a.k"),
    ("attr/__dict__", "class A: pass\na=A()\na.k=1", "a.k=5\nreturn t*a.__dict__['k']"),
    ("dict update", "class A: pass\na=A()\na.k=1", "a.__dict__.update(k=5)\nreturn t*a.k"),
    ("class attr/__dict__", "class A: k=1", "A.k=5\nreturn t*A.__dict__['k']"),
    ("class attr/vars", "class A: k=1", "A.k=5\nreturn t*vars(A)['k']"),
    ("class attr/instance", "class A: k=1\na=A()", "A.k=5\nreturn t*a.k"),
    ("class attr/subclass", "class A: k=1\nclass B(A): pass", "A.k=5\nreturn t*B.k"),
    ("class attr/type(a)", "class A: k=1\na=A()", "type(a).k=5\nreturn t*A.k"),
    (
        "class attr/getattr_static",
        "import inspect\nclass A: k=1",
        "A.k=5\nreturn t*inspect.getattr_static(A,'k')",
    ),
    ("global/globals()", "k=1", "global k\nk=5\nreturn t*globals()['k']"),
    ("globals()/global", "k=1", "globals()['k']=5\nreturn t*k"),
    (
        "module attr/__dict__",
        "import types\nmod=types.ModuleType('m')\nmod.k=1",
        "mod.k=5\nreturn t*mod.__dict__['k']",
    ),
    (
        "module attr/vars",
        "import types\nmod=types.ModuleType('m')\nmod.k=1",
        "mod.k=5\nreturn t*vars(mod)['k']",
    ),
    (
        "module __dict__/attr",
        "import types\nmod=types.ModuleType('m')\nmod.k=1",
        "mod.__dict__['k']=5\nreturn t*mod.k",
    ),
    (
        "module attr/getattr",
        "import types\nmod=types.ModuleType('m')\nmod.k=1",
        "setattr(mod,'k',5)\nreturn t*getattr(mod,'k')",
    ),
    (
        "module attr/function globals",
        "import types\nmod=types.ModuleType('m')\nmod.k=1\nexec('def g(): return k', mod.__dict__)",
        "mod.k=5\nreturn t*mod.g()",
    ),
    (
        "function global/module attr",
        "import types\nmod=types.ModuleType('m')\nmod.k=1\nexec('def g():\\n global k\\n k=5', mod.__dict__)",
        "mod.g()\nreturn t*mod.k",
    ),
    ("func attr/__dict__", "def g(): pass\ng.k=1", "g.k=5\nreturn t*g.__dict__['k']"),
    ("func __dict__/attr", "def g(): pass\ng.k=1", "g.__dict__['k']=5\nreturn t*g.k"),
    ("cell", "", "n=1\ndef g(): return n\ng.__closure__[0].cell_contents=5\nreturn t*n"),
    ("cell2", "", "n=1\ndef g(): return n\nn=5\nreturn t*g.__closure__[0].cell_contents"),
    (
        "environ",
        "import os\nos.environ['DVZ']='1'",
        "os.environ['DVZ']='5'\nreturn t*int(os.getenv('DVZ'))",
    ),
    ("slot", "class A: __slots__=('k',)\na=A()\na.k=1", "a.k=5\nreturn t*A.k.__get__(a)"),
    ("slot2", "class A: __slots__=('k',)\na=A()\na.k=1", "A.k.__set__(a,5)\nreturn t*a.k"),
    (
        "userdict",
        "import collections\nd=collections.UserDict(a=1)",
        "d['a']=5\nreturn t*d.data['a']",
    ),
    (
        "chainmap",
        "import collections\nm={'a':1}\nd=collections.ChainMap(m)",
        "d['a']=5\nreturn t*m['a']",
    ),
    ("proxy", "import types\nm={'a':1}\nd=types.MappingProxyType(m)", "m['a']=5\nreturn t*d['a']"),
    ("view of dict", "m={'a':1}\nv=m.values()", "m['a']=5\nreturn t*sum(v)"),
    ("memoryview", "m=bytearray(b'a')\nv=memoryview(m)", "m[0]=5\nreturn t*v[0]"),
    ("namespace", "import types\nn=types.SimpleNamespace(k=1)", "n.k=5\nreturn t*n.__dict__['k']"),
    ("namespace2", "import types\nn=types.SimpleNamespace(k=1)", "vars(n)['k']=5\nreturn t*n.k"),
    ("exc args", "e=ValueError(1)", "e.args=(5,)\nreturn t*e.args[0]"),
    (
        "stopiteration",
        "",
        "def g():\n    return 5\n    yield\ntry: next(g())\nexcept StopIteration as e: return t*(e.value+e.args[0])",
    ),
    (
        "property",
        "class A:\n    @property\n    def k(s): return s._k\n    @k.setter\n    def k(s,v): s._k=v\na=A()\na._k=1",
        "a.k=5\nreturn t*a._k",
    ),
    (
        "partial",
        "import functools\np=functools.partial(int)\np.k=1",
        "p.k=5\nreturn t*p.__dict__['k']",
    ),
    (
        "real/view",
        "w=torch.ones(2,dtype=torch.complex64)",
        "w.real.mul_(5)\nreturn t*torch.view_as_real(w)[0,0]",
    ),
]


def run(statements, names):
    exec(compile(statements, "<program>", "exec", dont_inherit=True), names)


@pytest.mark.parametrize(
    ("setup", "body"), [row[1:] for row in PROGRAMS], ids=[r[0] for r in PROGRAMS]
)
def test_aliased_state(setup, body, monkeypatch):
    monkeypatch.setenv("DVZ", "1")
    outcomes = []
    for wrap in (lambda program: program, lambda program: optimize(program, run_graph)):
        names = {"torch": torch, "__name__": "program", "__builtins__": builtins}
        run(setup, names)
        run("def program(t):\n" + textwrap.indent(body, "    "), names)
        result = wrap(names["program"])(torch.tensor([1.0, 2.0])).tolist()
        tensor = names.get("w")
        gradient = tensor.grad if tensor is not None and tensor.is_leaf else None
        outcomes.append((result, None if gradient is None else gradient.tolist()))
    assert outcomes[0] == outcomes[1]
