// From the tables that lower.py makes to a Program. Runs once per plan, with the GIL.
#pragma once

#include <Python.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include <c10/core/ScalarTypeToTypeMeta.h>

#include <cstring>

#include "matmul.h"
#include "program.h"
#include "python_values.h"

namespace dovetail {

class Loader {
 public:
  Loader(Program& program, PyObject* tensor_type) : program_(program), tensor_type_(tensor_type) {}

  void load(PyObject* tables) {
    tables_ = tables;
    program_.name = to_string(table("name"));
    Items values(table("values"));
    for (Py_ssize_t i = 0; i < values.size(); ++i) program_.values.push_back(to_int(values[i]));
    each("size_program", [&](const Items& t) {
      program_.size_program.push_back(
          {static_cast<int>(to_int(t[0])), index(t[1]), index(t[2]), index(t[3])});
    });
    Items late(table("late_programs"));
    for (Py_ssize_t i = 0; i < late.size(); ++i) {
      std::vector<SizeInstruction> instructions;
      Items rows(late[i]);
      for (Py_ssize_t j = 0; j < rows.size(); ++j) {
        Items t(rows[j]);
        instructions.push_back({static_cast<int>(to_int(t[0])), index(t[1]), index(t[2]), index(t[3])});
      }
      program_.late_programs.push_back(std::move(instructions));
    }
    each("bindings", [&](const Items& t) {
      program_.bindings.push_back({index(t[0]), index(t[1]), index(t[2])});
    });
    Items names(table("slot_names"));
    for (Py_ssize_t i = 0; i < names.size(); ++i) {
      program_.slots.push_back({to_string(names[i]), -1, nullptr, false});
    }
    each("inputs", [&](const Items& t) {
      InputInfo info;
      info.name = to_string(t[0]);
      info.slot = index(t[1]);
      if (info.slot >= 0) info.spec = spec(t[2]);
      program_.inputs.push_back(std::move(info));
    });
    each("constants", [&](const Items& t) {
      program_.constants.emplace_back(index(t[0]), tensor(t[1]));
    });
    each("slabs", [&](const Items& t) { program_.slabs.push_back({device(t[0]), index(t[1])}); });
    each("steps", [&](const Items& t) { program_.steps.push_back(step(t)); });
    each("outputs", [&](const Items& t) { program_.outputs.push_back(output(t)); });
    program_.mutated = to_indices(table("mutated"));
    each("releases", [&](const Items& t) {
      program_.releases.emplace_back(to_int(t[0]), to_indices(t[1]));
    });
    link();
  }

 private:
  PyObject* table(const char* name) {
    PyObject* value = PyDict_GetItemString(tables_, name);
    if (value == nullptr) {
      PyErr_Format(PyExc_KeyError, "the plan's tables lack %s", name);
      throw PythonError();
    }
    return value;
  }

  template <typename F>
  void each(const char* name, const F& f) {
    Items rows(table(name));
    for (Py_ssize_t i = 0; i < rows.size(); ++i) f(Items(rows[i]));
  }

  static int32_t index(PyObject* object) { return static_cast<int32_t>(to_int(object)); }

  at::Tensor tensor(PyObject* object) {
    if (PyObject_IsInstance(object, tensor_type_) != 1) {
      PyErr_Format(PyExc_TypeError, "a tensor expected, got %R", object);
      throw PythonError();
    }
    return reinterpret_cast<PythonTensor*>(object)->tensor;
  }

  c10::Device device(PyObject* object) {
    c10::Device result = reinterpret_cast<THPDevice*>(object)->device;
    if (result.is_cuda()) {
      int found = result.has_index() ? result.index() : 0;
      TORCH_CHECK(program_.cuda_device < 0 || program_.cuda_device == found, program_.name,
                  ": a plan runs on one CUDA device; this one names two");
      program_.cuda_device = found;
      return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(found));
    }
    TORCH_CHECK(result.is_cpu(), program_.name, ": device ", result, " is not supported");
    return result;
  }

  Spec spec(PyObject* object) {
    Items t(object);
    Spec out;
    out.dtype = reinterpret_cast<THPDtype*>(t[0])->scalar_type;
    out.device = device(t[1]);
    out.shape = to_indices(t[2]);
    out.stride = to_indices(t[3]);
    out.offset = index(t[4]);
    out.itemsize = static_cast<int64_t>(c10::scalarTypeToTypeMeta(out.dtype).itemsize());
    return out;
  }

  Output output(const Items& t) {
    switch (to_int(t[0])) {
      case 1: return {Output::Tensor, index(t[1])};
      case 2: return {Output::Size, index(t[1])};
      case 4: return {Output::Input, index(t[1])};
      case 5: return {Output::Float, index(t[1])};
      default: return {Output::None, 0};
    }
  }

  AssertSize assertion(const Items& t) {
    AssertSize step{index(t[1]), {}, to_indices(t[3]), to_int(t[4]) != 0};
    Items parts(t[2]);
    for (Py_ssize_t i = 0; i < parts.size(); ++i) step.message.push_back(to_string(parts[i]));
    return step;
  }

  Step step(const Items& t) {
    switch (to_int(t[0])) {
      case 0: return AllocateSlab{index(t[1]), spec(t[2]), index(t[3]), index(t[4])};
      case 1: return AllocateOwn{index(t[1]), spec(t[2]), index(t[3])};
      case 2: return ViewOf{index(t[1]), index(t[2]), spec(t[3])};
      case 3:
        return LaunchCpp{to_string(t[1]),
                         reinterpret_cast<CppFunction>(static_cast<uintptr_t>(to_int(t[2]))),
                         to_indices(t[3]), to_indices(t[4]), index(t[5]), to_int(t[6]),
                         to_string(t[7])};
      case 4: return launch_triton(t);
      case 5: return call_aten(t);
      case 6: return FreeSlots{to_indices(t[1])};
      case 7: return BindSize{index(t[1]), static_cast<int>(to_int(t[2])), index(t[3]), index(t[4])};
      case 8: return assertion(t);
      case 9: return choose(t);
      case 10: return loop(t);
      case 11: return FreeSlab{index(t[1])};
      default: TORCH_CHECK(false, "unknown operation code in the plan's tables");
    }
  }

  ChooseProgram choose(const Items& t) {
    ChooseProgram step{index(t[1]), {}, {}, to_indices(t[4])};
    Items branches(t[2]);
    for (Py_ssize_t i = 0; i < 2; ++i) step.branches[i] = inner(branches[i]);
    step.arguments = given(t[3]);
    return step;
  }

  WhileProgram loop(const Items& t) {
    return WhileProgram{inner(t[1]), inner(t[2]), given(t[3]), to_indices(t[4])};
  }

  // A program that a step runs.
  std::shared_ptr<Program> inner(PyObject* tables) {
    auto program = std::make_shared<Program>();
    Loader(*program, tensor_type_).load(tables);
    if (program->cuda_device >= 0) program_.cuda_device = program->cuda_device;
    return program;
  }

  // What such a program is given: slots, and sizes.
  std::vector<int32_t> given(PyObject* tagged) {
    std::vector<int32_t> found;
    Items arguments(tagged);
    for (Py_ssize_t i = 0; i < arguments.size(); ++i) {
      Items own(arguments[i]);
      found.push_back(index(own[1]));
    }
    return found;
  }

  LaunchTriton launch_triton(const Items& t) {
    LaunchTriton launch;
    launch.name = to_string(t[1]);
    launch.entry = to_string(t[2]);
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(t[3], &bytes, &size) != 0) throw PythonError();
    launch.cubin.assign(bytes, static_cast<size_t>(size));
    Items arguments(t[4]);
    for (Py_ssize_t i = 0; i < arguments.size(); ++i) {
      Items own(arguments[i]);
      launch.arguments.push_back(
          {static_cast<TritonArgument::Kind>(to_int(own[0])), index(own[1])});
    }
    std::vector<int32_t> grid = to_indices(t[5]);
    TORCH_CHECK(grid.size() == 3, "a grid has three dimensions");
    std::copy(grid.begin(), grid.end(), launch.grid);
    launch.shared_bytes = static_cast<int>(to_int(t[6]));
    launch.threads = static_cast<int>(to_int(t[7]));
    launch.scratch_parameters = static_cast<int>(to_int(t[8]));
    launch.scratch_bytes = to_int(t[9]);
    launch.label = to_string(t[10]);
    launch.early = to_int(t[11]) != 0;
    TORCH_CHECK(launch.scratch_bytes == 0 || launch.scratch_parameters > 0, launch.name,
                " takes no pointer to its scratch memory");
    return launch;
  }

  // --- ATen calls: every literal is converted once, to what the operator's schema wants ---

  CallAten call_aten(const Items& t) {
    std::string name = to_string(t[1]), overload = to_string(t[2]);
    auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    std::string shown = overload.empty() ? name : name + "." + overload;
    TORCH_CHECK(op.has_value(), program_.name, ": there is no operator ", shown);
    CallAten call{shown, *op, {}, to_indices(t[5]), {}};
    call.line = to_string(t[7]);
    Items expected(t[6]);
    for (Py_ssize_t i = 0; i < expected.size(); ++i) {
      call.expected.push_back(expected[i] == Py_None ? std::nullopt
                                                     : std::make_optional(spec(expected[i])));
    }
    const c10::FunctionSchema& schema = op->schema();
    Items positional(t[3]);
    TORCH_CHECK(positional.size() <= static_cast<Py_ssize_t>(schema.arguments().size()),
                program_.name, ": too many arguments for ", schema);
    Py_ssize_t used = 0;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& formal = schema.arguments()[i];
      PyObject* named = PyDict_GetItemString(t[4], formal.name().c_str());
      if (static_cast<Py_ssize_t>(i) < positional.size()) {
        TORCH_CHECK(named == nullptr, program_.name, ": ", shown, ": argument '", formal.name(),
                    "' is given twice");
        call.arguments.push_back(argument(positional[static_cast<Py_ssize_t>(i)], formal, schema));
      } else if (named != nullptr) {
        ++used;
        call.arguments.push_back(argument(named, formal, schema));
      } else {
        TORCH_CHECK(formal.default_value().has_value(), program_.name, ": argument '",
                    formal.name(), "' is missing for ", schema);
        call.arguments.push_back({AtenArgument::Literal, *formal.default_value()});
      }
    }
    TORCH_CHECK(used == PyDict_GET_SIZE(t[4]), program_.name, ": a keyword argument unknown to ",
                schema);
    return call;
  }

  AtenArgument argument(PyObject* tagged, const c10::Argument& formal,
                        const c10::FunctionSchema& schema) {
    auto refuse = [&](const std::string& why) {
      TORCH_CHECK(false, program_.name, ": argument '", formal.name(), "' of ", schema, ": ", why);
    };
    Items pair(tagged);
    // A single int stands for a list of that many, as in `stride=1` for `int[2]`.
    if (formal.N().has_value() && to_int(pair[0]) != 3 && pair[1] != Py_None) {
      c10::TypePtr list = strip_optional(formal.type());
      if (list->kind() == c10::TypeKind::ListType) {
        AtenArgument item = convert(tagged, list->expectRef<c10::ListType>().getElementType(),
                                    refuse);
        auto items = std::make_shared<AtenList>();
        items->element_type = list->expectRef<c10::ListType>().getElementType();
        items->items.assign(static_cast<size_t>(*formal.N()), item);
        return finished_list(std::move(items));
      }
    }
    return convert(tagged, formal.type(), refuse);
  }

  static c10::TypePtr strip_optional(c10::TypePtr type) {
    while (type->kind() == c10::TypeKind::OptionalType) {
      type = type->expectRef<c10::OptionalType>().getElementType();
    }
    return type;
  }

  // A list of literals only is built now; others are built for each call.
  static AtenArgument finished_list(std::shared_ptr<AtenList> list) {
    for (const AtenArgument& item : list->items) {
      if (item.kind != AtenArgument::Literal) {
        return {AtenArgument::List, {}, 0, false, std::move(list)};
      }
    }
    c10::impl::GenericList values(list->element_type);
    for (const AtenArgument& item : list->items) values.push_back(item.literal);
    return {AtenArgument::Literal, values};
  }

  template <typename Refuse>
  AtenArgument convert(PyObject* tagged, const c10::TypePtr& type, const Refuse& refuse) {
    Items pair(tagged);
    c10::TypePtr wanted = strip_optional(type);
    switch (to_int(pair[0])) {
      case 1:
        if (wanted->kind() != c10::TypeKind::TensorType) refuse("a tensor is given");
        return {AtenArgument::Tensor, {}, index(pair[1]), false, nullptr,
                type->kind() == c10::TypeKind::TensorType};
      case 2: {
        if (wanted->kind() == c10::TypeKind::TensorType) {
          return {AtenArgument::Size, {}, index(pair[1]), false, nullptr, false, true};
        }
        bool as_double = wanted->kind() == c10::TypeKind::FloatType;
        if (!as_double && wanted->kind() != c10::TypeKind::IntType &&
            wanted->kind() != c10::TypeKind::NumberType) {
          refuse("a size is given");
        }
        return {AtenArgument::Size, {}, index(pair[1]), as_double};
      }
      case 3: {
        if (wanted->kind() != c10::TypeKind::ListType) refuse("a list is given");
        auto list = std::make_shared<AtenList>();
        list->element_type = wanted->expectRef<c10::ListType>().getElementType();
        Items items(pair[1]);
        for (Py_ssize_t i = 0; i < items.size(); ++i) {
          list->items.push_back(convert(items[i], list->element_type, refuse));
        }
        return finished_list(std::move(list));
      }
      case 5: {
        bool wrapped = wanted->kind() == c10::TypeKind::TensorType;
        if (!wrapped && wanted->kind() != c10::TypeKind::FloatType &&
            wanted->kind() != c10::TypeKind::NumberType) {
          refuse("a float is given");
        }
        return {AtenArgument::Float, {}, index(pair[1]), false, nullptr, false, wrapped};
      }
      default:
        return {AtenArgument::Literal, literal(pair[1], type, wanted, refuse)};
    }
  }

  template <typename Refuse>
  c10::IValue literal(PyObject* value, const c10::TypePtr& type, const c10::TypePtr& wanted,
                      const Refuse& refuse) {
    if (value == Py_None) {
      if (type->kind() != c10::TypeKind::OptionalType &&
          wanted->kind() != c10::TypeKind::TensorType) {
        refuse("None is given");
      }
      // A schema says `Tensor` where eager passes an undefined one (attention without a mask).
      return type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
    }
    if (THPDtype_Check(value)) {
      return static_cast<int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type);
    }
    if (THPDevice_Check(value)) return device(value);
    if (THPLayout_Check(value)) {
      return static_cast<int64_t>(reinterpret_cast<THPLayout*>(value)->layout);
    }
    if (THPMemoryFormat_Check(value)) {
      return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(value)->memory_format);
    }
    if (PyUnicode_Check(value)) {
      if (wanted->kind() == c10::TypeKind::DeviceObjType) return c10::Device(to_string(value));
      if (wanted->kind() != c10::TypeKind::StringType) refuse("a string is given");
      return to_string(value);
    }
    c10::IValue number = number_value(value, refuse);
    switch (wanted->kind()) {
      case c10::TypeKind::TensorType: return wrapped_number(number);
      case c10::TypeKind::FloatType:
        if (number.isInt()) return static_cast<double>(number.toInt());
        if (!number.isDouble()) refuse("a float is wanted");
        return number;
      case c10::TypeKind::IntType:
        if (number.isBool()) return static_cast<int64_t>(number.toBool());
        if (!number.isInt()) refuse("an int is wanted");
        return number;
      case c10::TypeKind::BoolType:
        if (!number.isBool()) refuse("a bool is wanted");
        return number;
      case c10::TypeKind::NumberType: return number;
      default: refuse("a number is given"); return {};
    }
  }

  template <typename Refuse>
  c10::IValue number_value(PyObject* value, const Refuse& refuse) {
    if (PyBool_Check(value)) return value == Py_True;
    if (PyLong_Check(value)) return to_int(value);
    if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
    if (PyComplex_Check(value)) {
      return c10::complex<double>(PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value));
    }
    refuse(std::string("a value of type ") + Py_TYPE(value)->tp_name + " is given");
    return {};
  }

  // A product of matrices into memory that is there, scaled by nothing.
  static bool is_product(const CallAten& call) {
    for (SlotIndex output : call.outputs) {
      if (output >= 0) return false;
    }
    if (call.name == "aten::mm.out" || call.name == "aten::bmm.out") return true;
    if (call.name != "aten::addmm.out") return false;
    for (const AtenArgument& argument : call.arguments) {
      if (argument.kind == AtenArgument::Tensor) continue;
      if (argument.kind != AtenArgument::Literal || !argument.literal.isScalar()) return false;
      if (!argument.literal.toScalar().equal(1)) return false;
    }
    return true;
  }

  void note_results(const std::vector<SlotIndex>& slots) {
    for (SlotIndex slot : slots) {
      if (slot >= 0) program_.slots[slot].result = true;
    }
  }

  // What can be known only when all steps stand where they will stay.
  void link() {
    std::vector<bool> needs_data(program_.slots.size(), false);
    for (Step& step : program_.steps) {
      if (auto* allocate = std::get_if<AllocateSlab>(&step)) {
        program_.slots[allocate->slot].spec = &allocate->spec;
        program_.slots[allocate->slot].in_slab = true;
      } else if (auto* view = std::get_if<ViewOf>(&step)) {
        program_.slots[view->slot].spec = &view->spec;
        program_.slots[view->slot].root = view->root;
      } else if (auto* cpp = std::get_if<LaunchCpp>(&step)) {
        for (SlotIndex slot : cpp->tensors) needs_data[slot] = true;
      } else if (auto* choose = std::get_if<ChooseProgram>(&step)) {
        note_results(choose->outputs);
      } else if (auto* loop = std::get_if<WhileProgram>(&step)) {
        note_results(loop->outputs);
      } else if (auto* call = std::get_if<CallAten>(&step)) {
        note_results(call->outputs);
        if (program_.cuda_device < 0 || !direct_products() || !is_product(*call)) continue;
        if (CublasLt::get() == nullptr) continue;
        call->product = std::make_shared<LtProduct>();
        for (const AtenArgument& argument : call->arguments) {
          if (argument.kind == AtenArgument::Tensor) needs_data[argument.index] = true;
        }
      } else if (auto* triton = std::get_if<LaunchTriton>(&step)) {
        for (const TritonArgument& argument : triton->arguments) {
          if (argument.kind != TritonArgument::Integer) needs_data[argument.index] = true;
        }
      }
    }
    std::vector<bool> given_over(program_.slots.size(), false);
    for (const Step& step : program_.steps) {
      auto* allocate = std::get_if<AllocateOwn>(&step);
      if (allocate != nullptr && allocate->over >= 0) given_over[allocate->over] = true;
    }
    for (InputInfo& input : program_.inputs) {
      if (input.slot < 0) continue;
      input.needs_data = needs_data[input.slot];
      input.given_over = given_over[input.slot];
      program_.slots[input.slot].input = &input.spec;
    }
  }

  Program& program_;
  PyObject* tensor_type_;
  PyObject* tables_ = nullptr;
};

}  // namespace dovetail
