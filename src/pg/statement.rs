//! The statement that has called a verb: whether its transaction ends with the answer or may go on for long, and
//! whether it has an effect beside that of the verb.

use super::transaction;
use pgrx::PgList;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Returns whether the transaction ends with the answer of the verb that was just entered. It does if the verb was
/// called by a client's own SELECT outside a transaction block, or by the worker. DO, a procedure, a user's function
/// and a trigger may go on for long, but PostgreSQL does not count them as blocks. In all of these, the query that
/// called the verb is not the client's. A pipeline counts as a block only from its second statement on.
pub fn ends_with_answer() -> bool {
    if transaction::is_in_block() {
        return false;
    }
    // SAFETY: plain reads; a portal that runs a SELECT has the state of its query, which lives in a context of that
    // name
    unsafe {
        let Some(portal) = pg_sys::ActivePortal.as_ref() else { return true };
        let Some(query) = portal.queryDesc.as_ref() else { return false };
        let mut context = pg_sys::CurrentMemoryContext;
        while let Some(inner) = context.as_ref()
            && CStr::from_ptr(inner.name) != c"ExecutorState"
        {
            context = inner.parent;
        }
        query.estate.as_ref().is_some_and(|state| state.es_query_cxt == context)
    }
}

/// Returns whether the client's statement has no effect beside those of the functions `known`: it only reads, and calls
/// no other VOLATILE function. Such a function can send a notification, take an advisory lock, draw from a sequence or
/// write elsewhere, all without a transaction id. Of a plan that this does not know, it takes the worst.
pub fn has_no_effect_but(known: &dyn Fn(pg_sys::Oid) -> bool) -> bool {
    // SAFETY: a portal that runs a SELECT has its plan
    unsafe {
        let statement = pg_sys::ActivePortal
            .as_ref()
            .and_then(|portal| portal.queryDesc.as_ref())
            .and_then(|query| query.plannedstmt.as_ref());
        statement.is_some_and(|statement| {
            statement.commandType == pg_sys::CmdType::CMD_SELECT
                && !statement.hasModifyingCTE
                && is_harmless(statement.planTree, known)
                && PgList::<pg_sys::Plan>::from_pg(statement.subplans).iter_ptr().all(|plan| is_harmless(plan, known))
        })
    }
}

/// Returns whether a part of a plan has no effect beside those of the functions `known`.
unsafe fn is_harmless(plan: *mut pg_sys::Plan, known: &dyn Fn(pg_sys::Oid) -> bool) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: a plan whose nodes are of the types that their tags tell
    unsafe {
        let Some(node) = plan.as_ref() else { return true };
        let (inner, conditions) = match node.type_ {
            T_Result => (None, [(*plan.cast::<pg_sys::Result>()).resconstantqual, std::ptr::null_mut()]),
            T_Limit => {
                let limit = &*plan.cast::<pg_sys::Limit>();
                (None, [limit.limitOffset, limit.limitCount])
            }
            T_NestLoop | T_HashJoin | T_MergeJoin => {
                (None, [(*plan.cast::<pg_sys::Join>()).joinqual.cast(), std::ptr::null_mut()])
            }
            T_ValuesScan => (None, [(*plan.cast::<pg_sys::ValuesScan>()).values_lists.cast(), std::ptr::null_mut()]),
            T_SubqueryScan => (Some((*plan.cast::<pg_sys::SubqueryScan>()).subplan), [std::ptr::null_mut(); 2]),
            T_FunctionScan | T_SeqScan | T_IndexScan | T_IndexOnlyScan | T_BitmapHeapScan | T_BitmapIndexScan
            | T_CteScan | T_Agg | T_Group | T_Unique | T_Sort | T_Material | T_Hash | T_ProjectSet => {
                (None, [std::ptr::null_mut(); 2])
            }
            _ => return false,
        };
        let functions = match node.type_ {
            T_FunctionScan => (*plan.cast::<pg_sys::FunctionScan>()).functions,
            _ => std::ptr::null_mut(),
        };
        let values = PgList::<pg_sys::TargetEntry>::from_pg(node.targetlist);
        let functions = PgList::<pg_sys::RangeTblFunction>::from_pg(functions);
        values.iter_ptr().all(|value| calls_no_other((*value).expr.cast(), known))
            && functions.iter_ptr().all(|function| calls_no_other((*function).funcexpr, known))
            && ![node.qual.cast(), conditions[0], conditions[1]].into_iter().any(|one| has_effect(one))
            && [node.lefttree, node.righttree].into_iter().chain(inner).all(|part| is_harmless(part, known))
    }
}

/// Returns whether an expression is a call of one of the functions `known`, or has no effect.
unsafe fn calls_no_other(node: *mut pg_sys::Node, known: &dyn Fn(pg_sys::Oid) -> bool) -> bool {
    // SAFETY: a node of the type that its tag tells
    unsafe {
        match node.cast::<pg_sys::FuncExpr>().as_ref() {
            Some(call) if call.xpr.type_ == pg_sys::NodeTag::T_FuncExpr && known(call.funcid) => {
                !has_effect(call.args.cast())
            }
            _ => !has_effect(node),
        }
    }
}

unsafe fn has_effect(node: *mut pg_sys::Node) -> bool {
    // SAFETY: an expression, a list of these, or none
    unsafe { pg_sys::contain_volatile_functions(node) }
}

/// Returns the start of the client's last message that runs or prepares a statement. A pipeline has one such message
/// for each statement, and a string of several statements is one.
pub fn began_at() -> i64 {
    // SAFETY: a plain read
    unsafe { pg_sys::GetCurrentStatementStartTimestamp() }
}

/// Returns whether a DO statement or a procedure has called this verb, in a statement of its own or through a function.
/// Such code may go on for long, and PostgreSQL does not count it as a transaction block. A cursor in it has a portal
/// of its own. So this also looks at the client's portal, which usually has no name.
pub fn runs_code() -> bool {
    // SAFETY: plain reads; an active portal has its statements
    unsafe {
        let runs = |portal: *mut pg_sys::PortalData| {
            portal
                .as_ref()
                .is_some_and(|portal| portal.status == pg_sys::PortalStatus::PORTAL_ACTIVE && is_code(portal))
        };
        pg_sys::SPI_inside_nonatomic_context()
            || runs(pg_sys::ActivePortal)
            || runs(pg_sys::GetPortalByName(c"".as_ptr()))
    }
}

/// Returns whether a portal belongs to a DO statement or a procedure.
unsafe fn is_code(portal: &pg_sys::PortalData) -> bool {
    // SAFETY: a list of planned statements, or none
    unsafe {
        PgList::<pg_sys::PlannedStmt>::from_pg(portal.stmts).iter_ptr().any(|statement| {
            let utility = (*statement).utilityStmt.as_ref().map(|utility| utility.type_);
            matches!(utility, Some(pg_sys::NodeTag::T_DoStmt | pg_sys::NodeTag::T_CallStmt))
        })
    }
}
